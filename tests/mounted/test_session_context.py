"""A session's context/ and common programs: they read it like any folder, and it goes with its session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.agents.window.context import Pin, Summary
from cortexfs.agents.window.files import ContextFiles
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import said
from tests.mounted.test_session_files import ECHOS, does


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    """Shared by tests that name their sessions after themselves."""
    with mounted(python) as mount:
        yield mount


def context(mount: Ctx, session: str) -> ContextFiles:
    """Make a session with a context such as an agent's run leaves; returns its files."""
    said(mount, "hello", session=session)
    folder = mount.state / "sessions" / ECHOS / session
    files = ContextFiles(folder, str(mount.root / ECHOS / session))
    files.write_summary(Summary(2, 3, "They met."))
    files.write_pack(b"{}\n")
    files.pin("I am Ann.")
    files.pin("I like tea.")
    return files


def test_a_long_output_is_read_where_the_model_was_told(mount: Ctx) -> None:
    # issue 4: "spilled to a readable file when long"
    output = "".join(f"line {number}\n" for number in range(100_000))
    path = context(mount, "read").spill("c1", output)
    assert path == str(mount.root / ECHOS / "read/context/output/c1.txt")
    assert does(mount, f"tail -n 1 {path}") == "line 99999\n"
    assert does(mount, f"grep -c 'line 9' {path}") == "11111\n"
    assert Path(path).read_text() == output
    assert os.stat(path).st_size == len(output)


def test_a_pin_is_removed_with_its_file(mount: Ctx) -> None:
    files = context(mount, "pins")
    folder = mount.root / ECHOS / "pins/context/pinned"
    assert does(mount, f"cat {folder}/*") == "I am Ann.\nI like tea.\n"
    does(mount, f"rm {folder}/1.md")
    assert files.load().pinned == (Pin("2.md", "I like tea.\n"),)
    does(mount, f"rm -r {folder.parent}")
    assert not folder.parent.exists()
    files.pin("I am Bob.")
    assert does(mount, f"cat {folder}/1.md") == "I am Bob.\n"


@pytest.mark.parametrize(
    "script",
    [
        "rm -r {}",
        "rm -r {0}/* && rmdir {0}",
        "find {} -delete",
        "python3 -c 'import shutil; shutil.rmtree(\"{}\")'",
        "t=$(mktemp -d) && mv {} $t/ && rm -r $t",
        "rm -r {0}/context && rm -r {0}",
    ],
)
def test_it_goes_with_its_session(mount: Ctx, script: str) -> None:
    # abi.md 5.33
    context(mount, "swept").spill("c1", "x" * 1000)
    does(mount, script.format(f"{ECHOS}/swept"))
    assert not (mount.root / ECHOS / "swept").exists()
    assert not (mount.state / "sessions" / ECHOS / "swept").exists()
    said(mount, "here again", session="swept")
    assert not (mount.root / ECHOS / "swept/context").exists()


def test_ctx_session_rm_removes_it_too(mount: Ctx) -> None:
    context(mount, "command").spill("c1", "x")
    mount.ctx("session", "rm", "model/debug/echo", "command", "--yes")
    assert not (mount.root / ECHOS / "command").exists()
    assert not (mount.state / "sessions" / ECHOS / "command").exists()


def test_nothing_can_be_written_there(mount: Ctx) -> None:
    context(mount, "fixed")
    for script in ("echo x > {}/pinned/9.md", "echo x >> {}/summary.md", "mkdir {}/x"):
        done = mount.run(["sh", "-c", script.format(f"{ECHOS}/fixed/context")], cwd=mount.root)
        assert done.returncode
        assert "Read-only file system" in done.stderr
