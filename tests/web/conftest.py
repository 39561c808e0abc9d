"""The page in a real browser: one mount, one `ctx web` and one browser for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx, interpreter, mounted
from tests.web.browsing import Tab, WebProcess, browsing, person, web


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    with interpreter() as path:
        yield path


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, ["faulty"]) as mount:
        yield mount


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture
def page(ctx: Ctx) -> Iterator[WebProcess]:
    """A process for one test alone, so its ticket is unused."""
    with web(ctx) as process:
        yield process


@pytest.fixture
def tab(browser: Any, page: WebProcess) -> Iterator[Tab]:
    """A tab of a person at that page, who has entered: a reload before that may lose the ticket."""
    with person(browser, page.link) as found:
        found.get_by_role("navigation", name="Parts").wait_for()
        yield found
        assert found.faults == []
