"""What another's connections cost: 14 processes of a user connect and close, over many sockets, as we call.

Each is one of a program's own, as fast as it can, or held to its part of a quarter of a core.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.bench import measure
from tests.mounted.ctx_mount import Ctx

LOOPS = 14
SOCKETS = 14
HELD = 0.25  # of a core, all together
PAIRS = 200
STRANGER = 1234

LOOP = """
import socket, sys, time
at, part, places = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
began = time.monotonic() - time.process_time() / part
while True:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(places[at % len(places)])
    at += 1
    if part < 1:  # held to a part of a core, which is what is measured
        time.sleep(max(0, time.process_time() / part - (time.monotonic() - began)))  # others' part
"""


class Pair(NamedTuple):
    """Milliseconds from spawn to exit."""

    ours: float
    cat: float


class Figures(NamedTuple):
    alone: Pair
    flood: Pair
    held: Pair
    used: float  # by who is held, per cent of a core

    @property
    def over(self) -> float:
        """Returns how many times slower a call is, over how many times slower cat is."""
        return (self.flood.ours / self.alone.ours) / (self.flood.cat / self.alone.cat)


def figures(ctx: Ctx) -> Figures:
    places = _sockets(ctx)
    alone = _pair(ctx)
    with _flooding(places, 1.0):
        flood = _pair(ctx)
    with _flooding(places, HELD / LOOPS) as loops:
        used, began = sum(map(measure.cpu_ms, loops)), time.perf_counter()
        held = _pair(ctx)
        used = (sum(map(measure.cpu_ms, loops)) - used) / (time.perf_counter() - began) / 10
    return Figures(alone, flood, held, used)


def _sockets(ctx: Ctx) -> list[str]:
    """`.run.sock`, and those of models and agents, of which there are made as many as it takes."""
    for number in range(SOCKETS):
        found = [*ctx.root.glob("model/*/*.sock"), *ctx.root.glob("agent/*.sock")]
        if len(found) + 1 >= SOCKETS:
            break
        ctx.ctx("agent", "new", f"flood{number}", "--model", "debug/script")
    return [str(ctx.root / ".run.sock"), *map(str, found)]


def _pair(ctx: Ctx) -> Pair:
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    ours, cat, _ = measure.paired(
        lambda: measure.spawn([ctx.tool("fs.read"), str(small)], ctx.environ),
        lambda: measure.spawn(["/bin/cat", str(small)], ctx.environ),
        PAIRS,
    )
    return Pair(ours, cat)


@contextlib.contextmanager
def _flooding(places: list[str], part: float) -> Iterator[list[int]]:
    words = [os.path.realpath(sys.executable), "-I", "-S", "-c", LOOP]
    loops = [
        subprocess.Popen(
            [*words, str(at), str(part), *places], user=STRANGER, group=STRANGER, extra_groups=[]
        )
        for at in range(LOOPS)
    ]
    try:
        time.sleep(1)  # for their interpreters to start, which is not what is measured
        yield [loop.pid for loop in loops]
        assert all(loop.poll() is None for loop in loops), "a loop has ended"
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
