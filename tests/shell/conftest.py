"""Fixtures that several files of this ring begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shell.forks import public_directory


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may read, as hosts run as the users that call."""
    with public_directory() as made:
        yield made


@pytest.fixture
def work(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the caller."""
    made = place / "work"
    made.mkdir()
    monkeypatch.chdir(made)
    return made
