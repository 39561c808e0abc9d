"""Mounts for the outermost ring: one that most tests share, and fresh ones for those that break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, interpreter, mounted


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    with interpreter() as path:
        yield path


@pytest.fixture(scope="session")
def ctx(python: Path) -> Iterator[Ctx]:
    """A mount with the fixture plugin, shared: tests leave it as they found it."""
    with mounted(python, ["faulty"]) as mount:
        yield mount


@pytest.fixture
def fresh(python: Path) -> Iterator[Ctx]:
    """A mount of one test's own."""
    with mounted(python, ["faulty"]) as mount:
        yield mount
