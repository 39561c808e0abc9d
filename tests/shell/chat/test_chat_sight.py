"""The files that a chat compares with calls, and the way in which it reads them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cortexfs.chat import diffs, sessions
from cortexfs.chat.calls import Surroundings
from cortexfs.chat.commands import ChatPlace, Outside
from cortexfs.cli.talking import read
from cortexfs.core.talk.requests import Scope


def test_a_file_is_read_as_far_as_it_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * (diffs.MAX_FILE + 1000))
    assert len(read(str(file))) == diffs.MAX_FILE + 1
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path / "none"))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    # the module: "Opening a pipe would block, and opening a device may have effects."
    before = threading.active_count()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="Invalid argument"):
            read(str(path))
    assert threading.active_count() <= before  # threads of earlier tests may end meanwhile


@pytest.mark.parametrize(
    ("scope", "session", "given", "control", "path", "found"),
    [
        # abi.md 5.22
        ("private", "/own", "/given", "/control", "f", "/own/f"),
        ("private", "/", "/given", "/control", "f", "/given/f"),
        ("private", "", None, "/control", "f", "/control/f"),
        ("private", "", None, "", "f", "/f"),
        ("private", "/own", None, "", "/else/f", "/else/f"),
        ("temp", "/of the private one", "/given", "", "f", "/given/f"),
    ],
)
def test_a_path_is_taken_from_where_the_session_works(
    tmp_path: Path, scope: Scope, session: str, given: str | None, control: str, path: str, found: str
) -> None:
    asked: list[str] = []

    def reading(name: str) -> bytes:
        asked.append(name)
        return b""

    own = sessions.place(str(tmp_path), "agent/a", "private", "s")
    controls = tmp_path / "agent" / "a.d"
    for folder, text in ((own, session), (controls, control)):
        folder.mkdir(parents=True)
        (folder / "cwd").write_text(f"{text}\n")
    agent, outside = (
        str(tmp_path / "agent" / "a"),
        Outside(lambda name: (name, b""), lambda name: (name, name)),
    )
    place = ChatPlace(str(tmp_path), agent, "agent/a", scope, Surroundings(reading), outside)
    place.sight("s", given).read(path)
    assert asked == [found]
