"""Files of the chat: its history, and the sessions that the mount shows."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from cortexfs.chat import keys
from cortexfs.chat import said as said_before
from cortexfs.chat import sessions as stored
from cortexfs.chat.keys import History
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Message
from tests.shell.cli_sessions import Sessions

ECHO = "model/debug/echo"


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


# Completion.


@pytest.mark.parametrize(
    ("typed", "ends"),
    [
        ("/att", ["/attach"]),
        ("/resume o", ["one"]),
        ("/attach my", [" notes.txt"]),
        ("/pin my", []),
        ("my", []),
    ],
)
def test_orders_complete(
    typed: str, ends: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # chat.md: "completes orders, sessions after `/resume`, and files after `/attach` and `/save`"
    (tmp_path / "my notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    found = keys.Orders(lambda: ["one", "two"]).get_completions(Document(typed), CompleteEvent())
    assert [one.text for one in found] == ends


# History.


def entries(kept: History) -> list[str]:
    """Returns the entries of the history, the oldest first."""
    return list(kept.load_history_strings())[::-1]


def test_what_was_typed_is_there_again_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    # chat.md: "kept in `chat_history` in your state directory, which nobody else may read"
    path = tmp_path / "state" / "chat_history"
    for text in ("one", "two\nlines", "ünï", "caf\udce9"):
        History(path).store_string(text)
    assert entries(History(path)) == ["one", "two\nlines", "ünï", "caf�"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_history_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "h"
    kept = History(path)
    kept.store_string("x" * keys.MAX_ENTRY)
    assert entries(kept) == []
    for number in range(2 * keys.MAX_ENTRIES + 1):
        kept.store_string(f"entry {number}")
    assert len(entries(kept)) == keys.MAX_ENTRIES
    assert entries(kept)[-1] == f"entry {2 * keys.MAX_ENTRIES}"
    assert len(path.read_bytes().splitlines()) == keys.MAX_ENTRIES
    path.write_text("".join(f'"{"y" * 1000}{number}"\n' for number in range(2000)))
    assert entries(kept)[-1].endswith("1999")
    assert path.stat().st_size <= keys.MAX_FILE // 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["h"]


def test_a_history_that_cannot_be_kept_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('"secret"\n')
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")  # the history must not wait for its other end
    for path in (None, tmp_path / "link", tmp_path / "elsewhere" / "below", tmp_path / "pipe"):
        kept = History(path)
        kept.store_string("one")
        assert entries(kept) == []
    assert (tmp_path / "elsewhere").read_text() == '"secret"\n'


def test_lines_of_other_programs_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(b'cut"\n"one"\n{}\n\xff\n"two"\n"torn')
    assert entries(History(path)) == ["one", "two"]


# Sessions.


def test_sessions_are_listed_newest_first(sessions: Sessions) -> None:
    # abi.md 5.31
    sessions.add("old", 100)
    sessions.add("new", 300, state="active")
    sessions.add("middle", 200)
    there = [*stored.each(sessions.root, ECHO, "private")]
    assert [one.session for one in there] == ["new", "middle", "old"]
    assert there[0].state == "active"
    assert (there[0].messages, there[0].updated) == (2, 300)
    assert stored.objects(sessions.root, "private") == [ECHO]
    assert [*stored.each(sessions.root, ECHO, "shared")] == []
    assert [*stored.each(sessions.root, "agent/none", "private")] == []


def test_a_session_is_found_or_said_not_to_be_there(sessions: Sessions) -> None:
    sessions.add("one", 100)
    assert stored.find(sessions.root, ECHO, "private", "one").session == "one"
    with pytest.raises(Fault, match="see: ctx session list"):
        stored.find(sessions.root, ECHO, "private", "two")
    # protocol.md: "Session names follow the grammar of names ..., and none is `index`"
    for broken in ("../../x", "index"):
        with pytest.raises(Fault) as raised:
            stored.find(sessions.root, ECHO, "private", broken)
        assert raised.value.code == "EINVAL"


def test_the_end_of_a_log_is_read_as_far_as_it_is_whole(sessions: Sessions) -> None:
    place = sessions.add("one", 100)
    with open(place / "events.jsonl", "ab") as file:
        file.write(b'not a frame\n{"type":"delta","id":"99","run":"r","text":"to')
    past = said_before.tail(place)
    assert [frame.id for frame in past] == ["1", "2", "3", "4", "5"]
    assert said_before.tail(sessions.folder / "none") == []


def test_a_chat_recalls_the_last_messages(sessions: Sessions) -> None:
    place = sessions.add("one", 100)
    past = said_before.tail(place)
    assert said_before.recent(past) == (past, False)
    assert said_before.recent([]) == ([], False)
    cut, is_cut = said_before.recent(past, most=1)
    assert is_cut
    assert isinstance(cut[0], Message)
    assert cut == past[3:]


def test_a_long_log_is_read_from_its_end(sessions: Sessions) -> None:
    place = sessions.add("one", 100)
    line = json.dumps({"type": "delta", "id": "{}", "run": "r", "text": "x" * 1000}).replace("{}", "%d")
    with open(place / "events.jsonl", "a") as file:
        file.writelines(f"{line % number}\n" for number in range(6, 5006))
    past = said_before.tail(place)
    assert past[-1].id == "5005"
    assert isinstance(past[0], Delta)
    assert said_before.recent(past)[1]


def test_messages_can_be_read(sessions: Sessions) -> None:
    place = sessions.add("one", 100)
    with open(place / "messages.jsonl", "a") as file:
        file.write("damaged\n")
    said = [(message.role, message.content[0].text) for message in said_before.messages(place)]
    assert said == [("user", "hello"), ("assistant", "hello")]


def test_what_may_go_and_what_never_does(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    # commands.md: "Never removed are an object's newest session, one in which something runs, and `default`"
    monkeypatch.setattr("time.time", lambda: 1000.0)
    for name, updated in (("default", 100), ("a", 200), ("b", 300), ("newest", 400)):
        sessions.add(name, updated)
    sessions.add("runs", 50, state="active")
    there = [*stored.each(sessions.root, ECHO, "private")]

    def gone(age: float | None, keep: int | None) -> list[str]:
        return [one.session for one in stored.expired(there, age, keep)]

    assert gone(None, 0) == ["b", "a"]
    assert gone(None, 2) == ["a"]
    assert gone(750, None) == ["a"]
    assert gone(0, None) == ["b", "a"]
    assert gone(750, 1) == ["b", "a"]
    assert gone(None, None) == []


def test_removing_is_what_rm_does(sessions: Sessions) -> None:
    place = sessions.add("one", 100)
    stored.remove(stored.find(sessions.root, ECHO, "private", "one"))
    assert not place.exists()
    assert sessions.left() == []
