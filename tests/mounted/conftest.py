"""Mounts for the outermost ring: a mount that most tests share, and fresh mounts for tests that break it."""

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
    """A shared mount with the fixture plugin. Tests leave it as they found it."""
    with mounted(python, ["faulty"]) as mount:
        yield mount


@pytest.fixture
def fresh(python: Path) -> Iterator[Ctx]:
    """A mount with the fixture plugin for a single test."""
    with mounted(python, ["faulty"]) as mount:
        yield mount
