"""One team of two machines for most tests, which leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import interpreter
from tests.team.machines import Machine, need_server, team


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    need_server()
    with interpreter() as path:
        yield path


@pytest.fixture(scope="module")
def machines(python: Path) -> Iterator[dict[str, Machine]]:
    with team(python, "laptop", "box") as found:
        yield found


@pytest.fixture
def laptop(machines: dict[str, Machine]) -> Machine:
    return machines["laptop"]


@pytest.fixture
def box(machines: dict[str, Machine]) -> Machine:
    return machines["box"]
