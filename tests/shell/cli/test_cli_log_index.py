"""The index of `ctx log`, over session files that no daemon serves: found runs, removed runs, and attacks."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from cortexfs.cli.log import index, reading
from cortexfs.cli.log.index import Entry, Wanted
from cortexfs.core.errors import Fault
from tests.shell.logged import Logged


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logged:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Logged(tmp_path / "ctx")


def found(logged: Logged, words: str = "", **wanted: object) -> list[str]:
    return [entry.question for entry in entries(logged, Wanted(words=words, **wanted))]  # type: ignore[arg-type]


def entries(logged: Logged, wanted: Wanted) -> list[Entry]:
    with index.opened(str(logged.root)) as log:
        return log.find(wanted)


def file(logged: Logged) -> Path:
    return index.place(str(logged.root))


# Found runs.


def test_runs_are_found_newest_first(logged: Logged) -> None:
    # abi.md 8.16
    logged.say("a", "first question", "one", ts="2026-01-01T10:00:00Z")
    logged.say("b", "second question", "two", ts="2026-01-03T10:00:00Z")
    logged.say("a", "third question", "three", ts="2026-01-02T10:00:00Z")
    assert found(logged) == ["second question", "third question", "first question"]
    assert found(logged, most=1) == ["second question"]
    assert found(logged, since=1767348000.0) == ["second question", "third question"]


@pytest.mark.parametrize("fts", [True, False])
def test_all_words_have_to_be_there(logged: Logged, fts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 8.16: in question or answer, in any order; without FTS5 the same is found
    if not fts:
        monkeypatch.setattr(index, "_FTS", "CREATE VIRTUAL TABLE texts USING fts99(question, answer)")
    logged.say("a", "How do I migrate Postgres?", "with pg_dump -> and -j 4")
    logged.say("b", "and MySQL?", "no")
    with index.opened(str(logged.root)) as log:
        assert log.has_fts is fts
    for words in ("postgres", "MIGRATE pg_dump", "migra postg", "-> postgres", "-> -j"):
        assert found(logged, words) == ["How do I migrate Postgres?"], words
    assert found(logged, "postgres mysql") == []


def test_what_was_not_changed_is_not_read_again(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 8.16
    for name in "abc":
        logged.say(name, name, "x")
    found(logged)
    read: list[str] = []
    real = reading.read_all

    def read_all(logs: list[tuple[Path, int, bytes]]) -> object:
        read.extend(log[0].parent.name for log in logs)
        return real(logs)

    monkeypatch.setattr(reading, "read_all", read_all)
    assert found(logged) == ["c", "b", "a"]
    logged.say("a", "a again", "x")
    logged.say("d", "d", "x")
    assert found(logged) == ["d", "a again", "c", "b", "a"]
    assert sorted(read) == ["a", "d"]


def test_a_run_that_goes_on_is_read_until_it_is_over(logged: Logged) -> None:
    logged.say("a", "before", "x")
    logged.begin("a", "going on")
    first = entries(logged, Wanted())[0]
    assert (first.question, first.status) == ("going on", "active")
    logged.end("a", "the end")
    assert [(entry.status, entry.answer) for entry in entries(logged, Wanted(words="going"))] == [
        ("ok", "the end")
    ]
    assert found(logged) == ["going on", "before"]


def test_model_agent_and_tokens_are_those_of_the_run(logged: Logged) -> None:
    logged.say("a", "one", "x")
    logged.say("a", "two", "x", object_="agent/coder", model="openai/gpt-5")
    [entry] = entries(logged, Wanted(agent="coder"))
    assert (entry.question, entry.model, entry.agent) == ("two", "openai/gpt-5", "coder")
    assert (entry.input_tokens, entry.output_tokens) == (5, 2)
    assert found(logged, model="GPT") == ["two"]
    assert found(logged, model="_") == []


def test_an_id_may_be_short(logged: Logged) -> None:
    logged.say("a", "one", "x")
    [entry] = entries(logged, Wanted())
    assert found(logged, id=entry.id[:5]) == found(logged, id=entry.run) == ["one"]
    assert found(logged, id="%") == []


# Removed runs.


def test_a_session_that_is_gone_is_out_of_the_file_too(logged: Logged) -> None:
    # abi.md 8.17
    for number in range(50):
        logged.say(f"s{number}", f"question{number} common", "plentiful" * 100)
    logged.say("gone", "unmistakable xylophone", "zygomorphic answer " * 500)
    assert found(logged, "xylophone") == ["unmistakable xylophone"]
    assert b"zygomorphic" in file(logged).read_bytes()
    logged.remove("gone")
    assert found(logged, "xylophone") == []
    assert len(found(logged, "common")) == 50
    for word in (b"zygomorphic", b"xylophone", b"unmistakable"):
        assert word not in file(logged).read_bytes()
    assert [path.name for path in file(logged).parent.iterdir()] == [file(logged).name]  # no journal either


def test_another_session_of_the_same_name_takes_its_place(logged: Logged) -> None:
    # abi.md 8.17
    logged.say("a", "the former", "x" * 500)
    assert found(logged) == ["the former"]
    logged.remove("a")
    logged.say("a", "the later", "y")
    assert found(logged) == ["the later"]
    assert b"former" not in file(logged).read_bytes()


def test_an_object_that_is_gone_takes_its_sessions_with_it(logged: Logged) -> None:
    # abi.md 8.17
    logged.say("a", "kept", "x")
    logged.say("a", "gone", "x", object_="agent/coder")
    assert len(found(logged)) == 2
    logged.remove("a", object_="agent/coder")
    assert found(logged) == ["kept"]


def test_it_is_made_anew_from_the_sessions(logged: Logged) -> None:
    # abi.md 8.17: the index can be thrown away, and a damaged one is
    logged.say("a", "kept", "x")
    before = entries(logged, Wanted())
    file(logged).unlink()
    assert entries(logged, Wanted()) == before
    file(logged).write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    assert entries(logged, Wanted()) == before
    with contextlib.closing(sqlite3.connect(file(logged))) as db:
        db.execute("PRAGMA user_version = 99")
    assert entries(logged, Wanted()) == before


def test_mounts_are_told_apart(logged: Logged, tmp_path: Path) -> None:
    # abi.md 8.16
    other = Logged(tmp_path / "other")
    logged.say("a", "here", "x")
    other.say("a", "there", "x")
    assert (found(logged), found(other)) == (["here"], ["there"])
    assert (found(logged), found(other)) == (["here"], ["there"])


# Attacks.


def test_the_file_is_its_users_alone(logged: Logged) -> None:
    # abi.md 8.17
    logged.say("a", "x", "x")
    file(logged).parent.parent.mkdir()
    before = os.umask(0)
    try:
        found(logged)
    finally:
        os.umask(before)
    assert file(logged).stat().st_mode & 0o777 == 0o600
    assert file(logged).parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "open", "folder owner"])
def test_what_is_no_index_of_ours_is_replaced_and_never_followed(
    logged: Logged, tmp_path: Path, kind: str
) -> None:
    # abi.md 8.17
    logged.say("a", "mine", "x")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place = file(logged)
    place.parent.mkdir(parents=True, mode=0o700)
    match kind:
        case "link":
            place.symlink_to(victim)
        case "dangling":
            place.symlink_to(tmp_path / "made")
        case "hard link":
            place.hardlink_to(victim)
        case "open":
            place.touch()
            place.chmod(0o666)
        case _:
            if os.geteuid() != 0:
                pytest.skip("gives a file away, which only root can")
            place.touch(mode=0o600)
            os.chown(place, 65534, 65534)
    assert found(logged) == ["mine"]
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()
    assert not place.is_symlink()
    assert (place.stat().st_mode & 0o777, place.stat().st_uid, place.stat().st_nlink) == (
        0o600,
        os.geteuid(),
        1,
    )


def test_a_folder_that_others_may_write_has_no_index(logged: Logged) -> None:
    # abi.md 8.17
    logged.say("a", "mine", "x")
    file(logged).parent.mkdir(parents=True)
    file(logged).parent.chmod(0o777)
    with pytest.raises(Fault, match="users other than its owner may write it"):
        found(logged)
    assert list(file(logged).parent.iterdir()) == []


HOSTILE = (
    '"',
    "'; DROP TABLE runs; --",
    'NEAR("a" "b", 5)',
    "question: x",
    "{question answer}: x",
    "a OR b",
    "-a",
    "^a*",
    'x" OR "y',
    "%",
    "a!",
    "\ud800",
    "💣 %s {0}",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_looked_for_is_words_and_no_query(logged: Logged, text: str) -> None:
    # abi.md 8.16
    logged.say("a", "harmless", "nothing")
    assert found(logged, text) == []
    logged.say("b", f"said {text}", "nothing")
    assert found(logged, text) == [f"said {text}".replace("\ud800", "?")] or text == "\ud800"
    assert len(found(logged)) == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_model_said_is_text_and_no_query(logged: Logged, text: str) -> None:
    # abi.md 8.16
    logged.say("a", "plain", text * 3)
    logged.say("b", "other", "nothing")
    assert found(logged) == ["other", "plain"]


def test_numbers_that_a_model_says_fit(logged: Logged) -> None:
    # docs/attacks.md: "no model can say less than nothing"
    log = logged.begin("a", "how many")
    with log.open("ab") as file_:
        file_.write(
            b'{"type":"usage","id":"3","run":"r1","input_tokens":-5,"output_tokens":1%b}\n' % (b"0" * 17)
        )
    logged.end("a", "many")
    assert [(entry.input_tokens, entry.output_tokens) for entry in entries(logged, Wanted())] == [
        (5, (1 << 40) + 2)
    ]


def test_a_line_that_is_no_event_is_passed_over(logged: Logged) -> None:
    log = logged.say("a", "first", "x")
    with log.open("ab") as file_:
        file_.write(
            b'{"type":"message","id":"9","run":"r","role":7}\n{"type":"start" \xff\n['
            + b"[" * 100_000
            + b"\n"
        )
    logged.say("a", "second", "y")
    assert found(logged) == ["second", "first"]
