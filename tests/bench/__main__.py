"""`make bench`: measures every figure that is promised, and prints JSON and the table of docs/figures.md.
`python -m tests.bench plugins scale` measures and shows the named parts alone.

Each row has its subject, the figure, the goal, and whether the goal is met. Figures are medians and
ratios of this run on this machine; no test depends on them, so they cannot fail a build.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.bench import measure
from tests.bench.parts import OWN, SHARED
from tests.bench.rows import Row
from tests.mounted.ctx_mount import interpreter, mounted

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "figures.md"
MARK = "<!-- make bench writes below this line -->\n"


def table(rows: list[Row]) -> str:
    lines = ["| what | figure | goal |", "|---|---|---|"]
    for row in rows:
        goal = f"**{row.goal}**" if row.met is False else row.goal  # bold where the goal is missed
        lines.append(f"| {row.what} | {row.figure:.3g} {row.unit} | {goal} |")
    return "\n".join(lines) + "\n"


def machine() -> str:
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ": unknown")
    return (
        f"{cpu.split(': ')[1]}, {os.cpu_count()} cores, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


def measured(wanted: set[str]) -> tuple[list[Row], list[str]]:
    """Returns the rows, and the names of the parts that failed. The other parts are measured nevertheless."""
    rows: list[Row] = []
    failed: list[str] = []

    def add(name: str, part: Callable[[], Iterable[Row]]) -> None:
        if name in wanted:
            try:
                rows.extend(part())
            except Exception:  # any kind: a failed part must not cost hours of other parts
                traceback.print_exc()
                failed.append(name)

    with measure.as_if_unset(), interpreter() as python:
        if wanted & SHARED.keys():
            with mounted(python) as ctx:
                for name, shared in SHARED.items():
                    add(name, functools.partial(shared, ctx))
        for name, own in OWN.items():
            add(name, functools.partial(own, python))
    return rows, failed


def main() -> int:
    everything = {*SHARED, *OWN}
    words = set(sys.argv[1:]) - {"--write"}
    if strange := words - everything:
        print(f"there is no part {min(strange)}; there are {', '.join(sorted(everything))}", file=sys.stderr)
        return 2
    rows, failed = measured(words or everything)
    text = table(rows)
    print(text)
    if failed:
        print(f"these parts failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    if words:
        return 0
    Path("build").mkdir(exist_ok=True)
    Path("build/bench.json").write_text(json.dumps([vars(row) for row in rows], indent=1))
    if "--write" in sys.argv and DOCUMENT.exists():
        head = DOCUMENT.read_text().partition(MARK)[0]
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        DOCUMENT.write_text(f"{head}{MARK}\n{machine()}; at {commit.stdout.strip()}.\n\n{text}")
    return 0


sys.exit(main())
