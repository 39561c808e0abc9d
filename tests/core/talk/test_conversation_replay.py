"""The knowledge of a session that is read back, from its log or from a kept summary of the log."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.talk import session as sessions
from cortexfs.core.talk.requests import Send
from cortexfs.core.talk.session import Session
from tests.core.conversation_pair import new_session
from tests.tables import each_of

DELTA = b'{"type":"delta","id":"%d","run":"r-1","text":"x"}\n'


def begun(id_: str | None = None) -> Session:
    session = new_session()
    session.send(Send(id=id_, input="x"), "r-1")
    return session


def restored(session: Session) -> Session:
    again = new_session()
    again.restore(session.values())
    return again


def test_a_retry_is_known_after_a_session_was_kept() -> None:
    # abi.md 5.14
    session = begun("m")
    session.finish("r-1")
    session.send(Send(input="x"), "r-2")
    again = restored(session)
    assert again.send(Send(id="m", input="x"), "r-3") == ("r-1", [])
    assert (again.find("m"), again.find("r-2"), again.find("r-3")) == ("r-1", "r-2", None)


@each_of(("number", "leaps"), [(3, []), (4, [[3, 4]]), (10, [[3, 10]])])
def test_of_numbers_only_those_that_no_event_has_are_kept(number: int, leaps: list[list[int]]) -> None:
    session = begun()
    session.leap(number)
    session.emit("r-1", frames.Delta(text="x"))
    session.emit_deltas("r-1", ["x", "y"])
    session.finish("r-1")
    assert msgspec.msgpack.decode(session.values())[-1] == leaps


def test_a_log_may_begin_in_the_middle_of_an_answer() -> None:
    session = new_session()
    assert [session.replay(DELTA % number).number for number in (7, 8)] == [7, 8]
    assert (session.first, session.last, session.runs["r-1"].state) == (7, 8, "active")


@each_of("fault", [None, Fault("EIO", "x"), Fault("ECANCELED", "")])
def test_no_delta_follows_in_a_run_that_is_over(fault: Fault | None) -> None:
    session = begun()
    session.finish("r-1", fault)
    last = session.last
    with pytest.raises(Fault, match="EPROTO: a delta frame cannot follow in a run that is over"):
        session.replay(DELTA % (last + 1))
    assert session.last == last


def test_only_a_question_asks() -> None:
    session = begun()
    session.replay(b'{"type":"hologram","id":"3","run":"r-1","question":"q","call":"c"}\n')
    with pytest.raises(Fault, match='ENOENT: question: the run has no question "q"'):
        session.answer("r-1", "q")
    with pytest.raises(Fault, match='ENOENT: call: the run asks for no approval of "c"'):
        session.approve("r-1", "c")


def test_a_question_is_answered_once() -> None:
    session = begun()
    session.emit("r-1", frames.Question(call="c", question="q", name="n", message="x", schema={}))
    session.answer("r-1", "q")
    with pytest.raises(Fault, match='EALREADY: question: "q" was answered already'):
        session.answer("r-1", "q")


def test_a_session_has_so_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    # protocol.md, limits: "messages of a session"
    monkeypatch.setattr(sessions, "MAX_RUNS", 2)
    session = begun("m")
    session.send(Send(input="x"), "r-2")
    with pytest.raises(Fault, match="EFBIG: the session has 2 messages, which is the limit; begin another"):
        session.send(Send(input="x"), "r-3")
    assert session.send(Send(id="m", input="x"), "r-3") == ("r-1", [])  # a retry is not another message
