"""Calls to another machine of a team, with both machines and the server on this one."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench import measure
from tests.team import machines
from tests.team.machines import Machine

PAIRS = 200
CALLERS, CALLS = 16, 1000
BYTES = 100_000_000
TOOL = "fs.read"


class TeamFigures(NamedTuple):
    over: float  # ms that a remote call takes more than the same here
    took: float  # ms of a remote call
    joined: float  # a local call with a team joined, over one without
    rate: float  # calls a second
    stream: float  # MB a second


@contextmanager
def _two(python: Path) -> Iterator[tuple[Machine, Machine]]:
    with machines.team(python, "laptop", "box") as found:
        laptop, box = found["laptop"], found["box"]
        box.team("export", f"tool/{TOOL}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{TOOL}+box")
        yield laptop, box


def figures(python: Path) -> TeamFigures:
    with machines.machine(python, "alone") as alone, _two(python) as (laptop, box):
        small = box.ctx.work / "small"
        small.write_text("x" * 1023 + "\n")
        small.chmod(0o644)

        def call(machine: Machine, name: str, path: Path = small) -> float:
            return measure.spawn([machine.ctx.tool(name), str(path)], machine.ctx.environ)

        here = functools.partial(call, laptop, TOOL)
        there = functools.partial(call, laptop, f"{TOOL}+box")
        took, local, _ = measure.paired(there, here, PAIRS)
        _, _, joined = measure.paired(here, functools.partial(call, alone, TOOL), PAIRS)
        rate, _ = measure.parallel(there, CALLERS, CALLS)
        large = box.ctx.work / "large"
        line = "the quick brown fox jumps over the lazy dog, again and again\n"
        large.write_text(line * (BYTES // len(line)))
        whole = statistics.median(call(laptop, f"{TOOL}+box", large) for _ in range(3))
        return TeamFigures(took - local, took, joined, rate, large.stat().st_size / 1e3 / whole)
