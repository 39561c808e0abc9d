"""host/esm/fetch.py: a failed fetch is recognised as such, however this process was started."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shell import fetched
from tests.shell.fetched import SOURCE, Desk, plugin
from tests.shell.moduleserver import PRIVATE, Site

certificates, site, desk = fetched.certificates, fetched.site, fetched.desk


@pytest.fixture
def unheard(desk: Desk, site: Site) -> Iterator[None]:
    """The kernel reaps all children, so no parent learns how they ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("unheard")
def test_an_end_that_nobody_is_told_is_no_success(desk: Desk, place: Path) -> None:
    assert "cannot be fetched: its exit status is unknown" in desk.refused(plugin(place / "p", SOURCE))


@pytest.mark.usefixtures("unheard")
def test_a_command_is_told_of_its_children_whoever_starts_it(desk: Desk, site: Site, place: Path) -> None:
    site.npm("greet", {"index.js": fetched.GREET})
    words = [sys.executable, "-m", "cortexfs.cli.main", "plugin", "install", str(plugin(place / "p", SOURCE))]
    with subprocess.Popen([*words, "--private", PRIVATE], stderr=subprocess.PIPE) as running:
        said = running.communicate()[1].decode()
    assert desk.installed.exists(), said
