"""The order in which lanes take the files: the longest first, so that no lane is left with a long one.

Rules: `make lanes` measures all files, `--measure` some. seconds.txt has a line `SECONDS PATH` for each file.
A file without a line goes first. Without lanes the order is pytest's own. This module must never
change which tests run.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.txt")
measured: pytest.StashKey[defaultdict[str, float]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", action="store_true", help="write what each file takes to tests/seconds.txt")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[measured] = defaultdict(float)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        seconds = _known()
        items.sort(key=lambda item: -seconds.get(_file(item.nodeid), float("inf")))


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> object:
    if isinstance(report, pytest.TestReport):
        config.stash[measured][_file(report.nodeid)] += report.duration
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.option.measure and not hasattr(config, "workerinput"):
        known = {path: number for path, number in _known().items() if Path(path).exists()}
        files = sorted((known | config.stash[measured]).items(), key=lambda file: -file[1])
        lines = [f"{seconds:.1f} {path}\n" for path, seconds in files]
        SECONDS.write_text("".join(lines))


def _known() -> dict[str, float]:
    lines = (line.split() for line in SECONDS.read_text().splitlines())
    return {path: float(number) for number, path in lines}


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
