"""fs.search in its host's process beside grep(1), on one tree of small files that both have read before."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cortexfs import sdk
from cortexfs.tools.fs_search import search
from tests.bench import measure

FILES = 200_000
_IN_ONE = 500
_BODY = "the quick brown fox jumps over lazy dogs\n" * 6
_PAIRS = 5
_SEARCHES: dict[str, dict[str, Any]] = {
    "a rare word": {"pattern": "rareword"},
    "a rare pattern": {"pattern": "rare[w]ord"},
}


def over_grep() -> Iterator[tuple[str, float, float]]:
    """Yields the name of each search, its time over that of grep, and its time in seconds."""
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        _fill(Path(folder))
        for what, arguments in _SEARCHES.items():
            took, _, over = measure.paired(
                _timed(lambda arguments=arguments: _search(path=folder, **arguments)),  # type: ignore[misc]
                _timed(lambda: subprocess.run(["grep", "-r", "rareword", folder], stdout=subprocess.DEVNULL)),
                _PAIRS,
                warm=1,
            )
            yield what, over, took


def attacked() -> float:
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        (Path(folder) / "x").write_text("a" * 1_000_000 + "!\n")
        return _timed(lambda: _search(path=folder, pattern="(a+)+$"))()


def _fill(top: Path) -> None:
    for number in range(FILES):
        folder = top / f"{number // _IN_ONE:03}"
        if not number % _IN_ONE:
            folder.mkdir()
        rare = "rareword\n" if number % 50_000 == 77 else ""
        (folder / f"{number}.txt").write_text(f"{_BODY}line {number}\n{rare}")


def _search(**arguments: Any) -> None:
    assert not sdk.run(search, arguments, sdk.MemoryRuntime("fs.search")).is_error


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return once
