"""The tutorials work by copy and paste: their blocks of `sh` run, and print the output that they show."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.test_own_agents import as_user
from tests.places import PROJECT

PAGES = sorted(path.name for path in (PROJECT / "docs").glob("tutorial-*.md"))
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an admin is")


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial(python: Path, page: str, tmp_path: Path) -> None:
    with mounted(python, []) as mount:
        follow(mount, page, tmp_path)


@pytest.mark.parametrize("page", ["tutorial-agent.md", "tutorial-ask.md", "tutorial-tools.md"])
def test_a_tutorial_for_a_user_of_roots_mount(python: Path, page: str) -> None:
    with mounted(python, []) as mount:
        mine = mount.base / "mine"
        mine.mkdir()
        os.chown(mine, NOBODY, NOBODY)
        own = dict.fromkeys(("CTX_STATE", "CTX_CONFIG", "XDG_CACHE_HOME"), "")  # below the user's HOME
        own["TMPDIR"] = str(mine)
        follow(mount, page, mine, NOBODY, own)


def follow(
    mount: Ctx, page: str, place: Path, uid: int | None = None, environ: Mapping[str, str] | None = None
) -> None:
    text = (PROJECT / "docs" / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 4
    assert shown
    home = place / "home"
    home.mkdir()
    os.chown(home, uid or 0, uid or 0)
    words = {"HOME": str(home), "TMPDIR": str(mount.work), "CTX_OUTPUT": "text"}  # as on a reader's terminal
    words |= environ or {}
    uvx = mount.work / "uvx"  # without the net: the tests have the package that it would install
    uvx.write_text(f'#!/bin/sh\nexec {sysconfig.get_path("scripts")}/"$@"\n')
    uvx.chmod(0o755)
    path = f"{mount.work}:{mount.python.parent}:{mount.environ['PATH']}"
    line = ["bash", "-euo", "pipefail", "-c", "".join(blocks)]
    done = mount.run(line, uid=uid, env={**words, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    for said in "".join(shown).splitlines():
        assert said in done.stdout, (said, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_nothing_is_left_to_the_next_user_of_a_uid(python: Path) -> None:
    left = re.search(r"^state=.*?^ctx mount$", (PROJECT / "docs/tutorial-admin.md").read_text(), re.M | re.S)
    assert left
    with mounted(python, []) as mount:
        for words in (
            ("ask", "-m", "debug/echo", "mine"),
            ("agent", "new", "mine", "--home", "--anyway", "--model", "debug/echo"),
            ("provider", "add", "mine", "--base-url", "http://127.0.0.1:9/v1", "--format", "openai.chat"),
            ("provider", "secret", "set", "mine"),
            ("session", "list"),
        ):
            status, said, failed = as_user(mount, *words, input="sk-mine")
            assert status == 0, failed
        assert "model/debug/echo" in said
        assert (mount.state / "own" / str(NOBODY) / "secrets" / "mine").exists()
        done = mount.run(
            ["sh", "-ec", left[0]], env={"PATH": f"{mount.python.parent}:{mount.environ['PATH']}"}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert as_user(mount, "session", "list")[1:] == ("", "there are no private sessions\n")
        assert not [path for path in mount.state.rglob("*") if path.name in (str(NOBODY), "mine")]


def test_there_is_one_for_each_thing_that_people_come_for() -> None:
    assert [f"tutorial-{name}.md" for name in ("admin", "agent", "ask", "mcp", "tools")] == PAGES
