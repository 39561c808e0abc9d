"""The cost of another user's connections: 14 of his processes connect and close on many sockets as we call.

Each process loops as fast as it can, or is held to its share of a quarter of a core.
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
HELD = 0.25  # of a core, for all processes together
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
    used: float  # CPU of the held processes, per cent of a core

    @property
    def over(self) -> float:
        """Returns the slowdown of a call divided by the slowdown of cat."""
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
    """Returns `.run.sock` and the sockets of models and agents; creates agents until there are enough."""
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
        time.sleep(1)  # so that the start of the interpreters is not measured
        yield [loop.pid for loop in loops]
        assert all(loop.poll() is None for loop in loops), "a loop has ended"
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
