"""Listings of very many tools and sessions, by whole commands from spawn to exit.

The tools are those of one plugin. The sessions are copies, made without the daemon, of one that it made.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench import measure
from tests.mounted import agents
from tests.mounted.ctx_mount import Ctx, mounted

TOOLS = 10_000
SOME, MANY = 10_000, 100_000  # sessions
OBJECT = "model/debug/echo"
_PLUGIN = """\
from cortexfs.sdk import Tool, ToolResult
class T(Tool):
    description = 'One of many.'
    input_schema = {{'type': 'object', 'properties': {{'x': {{'type': 'string'}}}}}}
    def __init__(self, n): self.name = f'many.{{n}}'
    def execute(self, input): return ToolResult.success('')
tools = [T(n) for n in range({count})]
"""


class Command(NamedTuple):
    """Seconds until a command has printed its first row below the header, and until it has ended."""

    first: float
    whole: float


def command(ctx: Ctx, *words: str, rows: int) -> Command:
    began = time.perf_counter()
    with subprocess.Popen(words, env=ctx.environ, stdout=subprocess.PIPE) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(2)]
        first = time.perf_counter() - began
        lines += process.stdout
    assert not process.returncode
    assert len(lines) > rows, lines[:2]
    return Command(first, time.perf_counter() - began)


def program(ctx: Ctx) -> str:
    return str(ctx.python.with_name("ctx"))


@contextlib.contextmanager
def tools(python: Path, count: int = TOOLS) -> Iterator[Ctx]:
    """A mount with so many additional tools."""
    site = next((python.parent.parent / "lib").glob("python3*/site-packages"))
    (site / "ctx_test_many.py").write_text(_PLUGIN.format(count=count))
    info = site / "ctx_test_many-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ctx-test-many\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cortexfs.plugins]\nmany = ctx_test_many:tools\n")
    with mounted(python, ["many"]) as ctx:
        yield ctx


def inside(ctx: Ctx) -> dict[str, float]:
    """Milliseconds of commands in the shell of an agent that may run the tools whose number begins with 1:
    the quickest of five runs."""
    ctx.ctx("agent", "new", "finder", "--preset", "code", "--allow", "many.1*", "--model", "debug/script")
    took = {}
    for words in ("find 77", "ls tool --allowed"):
        once = f"a=$(date +%s%N); {program(ctx)} {words} >/dev/null; b=$(date +%s%N); echo $(((b-a)/1000))"
        said = agents.shell(ctx, "agent/finder", f"for i in 1 2 3 4 5; do {once}; done")
        took[words] = min(map(int, said.split())) / 1e3
    return took


def walked(ctx: Ctx, count: int) -> float:
    """Microseconds per entry to list tool/ with stat."""
    directory = str(ctx.root / "tool")

    def walk() -> None:
        with os.scandir(directory) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)

    walk()
    return measure.per_call(walk, max(1, 10_000 // count)) / (2 * count)


@contextlib.contextmanager
def sessions(python: Path, count: int) -> Iterator[tuple[Ctx, Path]]:
    """A mount with so many sessions of OBJECT, and their directory in it. Most of their files are created
    only when they are first asked for."""
    with mounted(python) as ctx:
        ctx.ctx("send", OBJECT, "--session", "first", "hello")
        ctx.umount()  # writes the session to disk
        place = Path(f"home/{os.getuid()}/{OBJECT}.d/session")
        _fill(ctx.state / "sessions" / place, count)
        ctx.mount()
        command(ctx, program(ctx), "session", "list", rows=count)  # creates the cached list of the sessions
        ctx.umount()
        ctx.mount()
        yield ctx, ctx.root / place


def _fill(folder: Path, count: int) -> None:
    files = {name: (folder / "first" / name).read_bytes() for name in ("events.jsonl", "meta.json", "state")}
    for number in range(1, count):
        made = folder / f"s{number}"
        made.mkdir(mode=0o700)
        for name, data in files.items():
            (made / name).write_bytes(data.replace(b'"first"', b'"%b"' % made.name.encode()))


LONG = 1 << 30  # bytes of a session's log
_LIMITS = f"[sessions]\nsession_mib = {2 * LONG >> 20}\nuser_mib = {4 * LONG >> 20}\n"
_DELTA = b'{"type":"delta","id":"%d","run":"r%d","text":"the quick brown fox jumps over the lazy dog"}\n'
_RUN = 5_000  # deltas of a message


def long_session(python: Path) -> tuple[float, float]:
    """Seconds to send to a session of LONG bytes: with no state kept of it, and after another mount."""
    with mounted(python, config=_LIMITS) as ctx:
        words = (program(ctx), "send", OBJECT, "--session", "long", "hello")
        command(ctx, *words, rows=0)
        ctx.umount()
        folder = ctx.state / f"sessions/home/{os.getuid()}/{OBJECT}.d/session/long"
        (folder / "meta.json").unlink()  # says how much of the log the other files cover
        _grow(folder / "events.jsonl")
        took = []
        for _ in range(2):
            ctx.mount()
            took.append(command(ctx, *words, rows=0).whole)
            ctx.umount()
        ctx.mount()
        return took[0], took[1]


def _grow(log: Path) -> None:
    with log.open("wb") as file:
        for first in range(1, LONG, _RUN + 2):
            head = b'{"type":"start","id":"%d","run":"r%d","model":"debug/echo"}\n' % (first, first)
            done = b'{"type":"done","id":"%d","run":"r%d","status":"ok"}\n' % (first + _RUN + 1, first)
            deltas = b"".join(_DELTA % (id_, first) for id_ in range(first + 1, first + _RUN + 1))
            file.write(head + deltas + done)
            if file.tell() > LONG:
                return
