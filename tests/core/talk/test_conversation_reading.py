"""Turns the bytes of a log into the bytes for a connection, decoded or not (abi.md 5.16)."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.talk import requests
from cortexfs.core.talk.protocol import Subscriptions
from cortexfs.core.talk.requests import Send, SessionKey
from tests.core.conversation_pair import new_session

KEY = SessionKey("private", 1000, "default")


def line(number: int, run: str, type_: str = "delta") -> bytes:
    return b'{"type":"%b","id":"%d","run":"%b","text":"x"}\n' % (type_.encode(), number, run.encode())


LOG = [line(1, "a"), line(2, "b"), line(3, "a", "done"), line(4, "b"), line(5, "b", "done"), line(6, "c")]


def following(run: str = "", after: int | None = None) -> Subscriptions:
    given = Subscriptions()
    if run:
        given.follow_run(KEY, run, 1)
    if after is not None:
        given.follow(KEY, after)
    return given


def read(given: Subscriptions, data: bytes, stop: int = 7) -> tuple[bytes, int]:
    return given.take_lines(KEY, range(given.due(KEY, stop - 1).start, stop), data)


def test_what_is_wanted_whole_is_sent_unread() -> None:
    given, whole = following(after=0), b"".join(LOG)
    sent, done = read(given, whole)
    assert sent is whole
    assert done == len(whole)
    assert not given.due(KEY, 6)


def test_of_others_runs_only_the_place_is_taken() -> None:
    given, whole = following("b"), b"".join(LOG)
    assert read(given, whole) == (LOG[1] + LOG[3] + LOG[4], len(whole))
    assert not given.awaits_runs  # the done of its run was among them
    assert not given.follows(KEY)


def test_a_run_alone_in_the_log_is_sent_unread_and_ends() -> None:
    given = following("a")
    data = line(1, "a") + line(2, "a", "done")
    sent, done = read(given, data, 3)
    assert sent is data
    assert done == len(data)
    assert not given.awaits_runs


def test_of_a_log_of_others_runs_nothing_is_sent() -> None:
    assert read(following("b"), LOG[0], 2) == (b"", len(LOG[0]))


def test_lines_past_what_is_due_are_left() -> None:
    for behind in (1, 4):
        data = b"".join(LOG[: 2 + behind])
        assert read(following(after=0), data, 3) == (LOG[0] + LOG[1], len(LOG[0] + LOG[1]))
        assert read(following("a"), data, 3) == (LOG[0], len(LOG[0] + LOG[1]))


def test_lines_before_what_is_due_are_passed_over() -> None:
    given = following(after=2)
    assert read(given, b"".join(LOG)) == (b"".join(LOG[2:]), len(b"".join(LOG)))


def test_lines_that_are_no_events_are_passed_over() -> None:
    given = following(after=0)
    data = LOG[0] + b"noise\n" + LOG[1]
    assert read(given, data, 3) == (LOG[0] + LOG[1], len(data))
    assert read(following(after=0), b"noise\n", 3) == (b"", 6)


def test_a_connection_hears_what_it_asked_for() -> None:
    other = SessionKey("private", 1000, "other")
    run, resumed = following("a"), following(after=4)
    assert [run.hears(KEY, each) for each in "ab"] == [True, False]
    assert [resumed.hears(KEY, each) for each in "ab"] == [True, True]
    assert not run.hears(other, "a")
    assert run.follows(KEY)
    assert not run.follows(other)


def test_deltas_are_the_active_runs_alone() -> None:
    session = new_session()
    for id_, run in (("i", "r1"), ("j", "r2")):
        request = requests.decode(b'{"op":"send","id":"%b","input":{"content":"a"}}' % id_.encode())
        assert isinstance(request, Send)
        session.send(request, run)
    number = session.next
    first, second = session.emit_deltas("r1", ["x", 'y"'])
    assert first == b'{"type":"delta","id":"%d","run":"r1","text":"x"}\n' % number
    assert second.endswith(b'"text":"y\\""}\n')
    assert session.next == number + 2
    for run in ("r2", "none"):
        with pytest.raises(Fault, match="cannot produce a delta frame now"):
            session.emit_deltas(run, ["x"])
    session.finish("r1")
    with pytest.raises(Fault, match="cannot produce a delta frame now"):
        session.emit_deltas("r1", ["x"])
