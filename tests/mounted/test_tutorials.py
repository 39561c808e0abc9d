"""The tutorials work by copy and paste: their blocks of `sh` are run, and what they show is seen."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.places import PROJECT

PAGES = sorted(path.name for path in (PROJECT / "docs").glob("tutorial-*.md"))
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an admin is")


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial(python: Path, page: str, tmp_path: Path) -> None:
    with mounted(python, []) as mount:
        follow(mount, page, tmp_path)


def follow(mount: Ctx, page: str, tmp_path: Path) -> None:
    text = (PROJECT / "docs" / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 4
    assert shown
    home = tmp_path / "home"
    home.mkdir()
    words = {"HOME": str(home), "TMPDIR": str(mount.work), "CTX_OUTPUT": "text"}  # as on a reader's terminal
    uvx = mount.work / "uvx"  # without the net: the server that it would install is a package of the tests
    uvx.write_text(f'#!/bin/sh\nexec {sysconfig.get_path("scripts")}/"$@"\n')
    uvx.chmod(0o755)
    path = f"{mount.work}:{mount.python.parent}:{mount.environ['PATH']}"
    done = mount.run(["bash", "-euo", "pipefail", "-c", "".join(blocks)], env={**words, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    for line in "".join(shown).splitlines():
        assert line in done.stdout, (line, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_there_is_one_for_each_thing_that_people_come_for() -> None:
    assert [f"tutorial-{name}.md" for name in ("admin", "agent", "ask", "mcp", "tools")] == PAGES
