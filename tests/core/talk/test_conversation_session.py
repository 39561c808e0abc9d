"""A session is a fold over its log (abi.md 5)."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.talk.requests import Send
from cortexfs.core.talk.session import MAX_WAITING, OUTPUT, TRANSITIONS, LogEvent, Session, State, step
from tests.core.conversation_pair import kinds, new_session
from tests.tables import each_of

FRAMES: dict[str, frames.Frame] = {
    "delta": frames.Delta(text="x"),
    "reasoning_delta": frames.ReasoningDelta(text="x"),
    "message": frames.Message(role="assistant", content=[frames.Text("x")]),
    "tool_call": frames.ToolCall(call="c", name="n", input={}),
    "tool_result": frames.ToolResult(call="c", name="n", output="x", is_error=False),
    "progress": frames.Progress(message="x"),
    "observer": frames.Observer(content="x"),
    "media": frames.Media(attachment={}),
    "usage": frames.Usage(input_tokens=1, output_tokens=1),
    "approval": frames.Approval(call="c", name="n", input={}, effects=[], reason="x"),
    "question": frames.Question(call="c", question="q", name="n", message="x", schema={}),
}


def read(events: list[LogEvent]) -> list[frames.AnyFrame]:
    return [frames.decode(event.line) for event in events]


def told(events: list[LogEvent]) -> str:
    return kinds(read(events))


def replayed(log: list[LogEvent]) -> Session:
    session = new_session()
    assert [session.replay(event.line) for event in log] == log
    return session


def same(one: Session, two: Session) -> bool:
    """Returns True if two sessions have the same state, apart from waiting messages."""
    left, right = ({id_: run for id_, run in each.runs.items() if run.first} for each in (one, two))
    return left == right and (one.first, one.last) == (two.first, two.last)


@each_of("state", TRANSITIONS)
@each_of("trigger", ["start", *OUTPUT, "error", "done ok", "done cancelled", "done error"])
def test_only_what_the_table_allows_can_follow(state: State, trigger: str) -> None:
    type_, _, status = trigger.partition(" ")
    after = TRANSITIONS[state].get(trigger)
    if after is not None:
        assert step(state, type_, status or None) == after
        return
    with pytest.raises(Fault, match=f"EPROTO: a {trigger} frame cannot follow in a run that is {state}"):
        step(state, type_, status or None)


def test_the_table_says_what_the_abi_says() -> None:
    # abi.md 5.13
    assert TRANSITIONS["over"] == {}
    assert {row for row, moves in TRANSITIONS.items() if "over" in moves.values()} == {"active", "failed"}
    # "also when it fails (error, then done)"
    assert TRANSITIONS["failed"] == {"done error": "over"}
    # "Readers ignore types and fields that they do not know"
    assert step("active", "hologram") == "active"
    # a run first seen in its middle
    assert (step(None, "delta"), step(None, "error"), step(None, "done", "error")) == (
        "active",
        "failed",
        "over",
    )


def test_a_run_from_start_to_done() -> None:
    # abi.md 5.13, 5.21
    session = new_session()
    run, log = session.send(Send(id="m1", input="hello"), "r-1")
    assert run == "r-1"
    for name in ("delta", "message", "usage"):
        log += session.emit(run, FRAMES[name])
    log += session.finish(run)
    assert told(log) == "start message delta message usage done"
    start, user, *_, done = read(log)
    assert isinstance(start, frames.Start)
    assert (start.model, start.request) == ("debug/echo", "m1")
    # "The log also holds the user's message (role user) after start"
    assert user == frames.Message(id="2", run="r-1", role="user", content=[frames.Text("hello")])
    assert done == frames.Done(id="6", run="r-1", status="ok")
    # "event ids are decimal strings, strictly increasing within a session"
    assert [event.number for event in log] == [1, 2, 3, 4, 5, 6]
    assert [frame.id for frame in read(log)] == ["1", "2", "3", "4", "5", "6"]
    assert [event.final for event in log] == [False] * 5 + [True]


@each_of("name", OUTPUT)
def test_every_frame_of_the_vocabulary_can_be_logged(name: str) -> None:
    session = new_session()
    _, log = session.send(Send(input="x"), "r-1")
    log += session.emit("r-1", FRAMES[name])
    assert frames.decode(log[-1].line) == msgspec.structs.replace(FRAMES[name], id="3", run="r-1")
    assert log[-1].line.startswith(b'{"type":"%b","id":"3","run":"r-1"' % name.encode())  # abi.md 6.1
    assert same(replayed(log), session)


@each_of(
    "frame",
    [frames.Start(), frames.Error(code="EIO", message="x"), frames.Done(status="ok"), frames.Pong()],
)
def test_a_run_cannot_write_its_own_beginning_and_end(frame: frames.Frame) -> None:
    session = new_session()
    session.send(Send(input="x"), "r-1")
    with pytest.raises(Fault, match="EPROTO"):
        session.emit("r-1", frame)
    assert session.last == 2


def test_one_message_at_a_time_in_order_of_arrival() -> None:
    # abi.md 5.15
    session = new_session()
    assert told(session.send(Send(input="one"), "r-1")[1]) == "start message"
    assert session.send(Send(input="two"), "r-2") == ("r-2", [])
    assert session.send(Send(input="three"), "r-3") == ("r-3", [])
    assert session.waiting == ("r-2", "r-3")
    with pytest.raises(Fault, match="EPROTO: the run r-2 cannot produce a delta frame now"):
        session.emit("r-2", FRAMES["delta"])
    with pytest.raises(Fault, match="EPROTO: the run r-2 has not begun"):
        session.finish("r-2")
    events = session.finish("r-1")
    assert told(events) == "done start message"
    assert [event.run for event in events] == ["r-1", "r-2", "r-2"]
    assert session.active
    assert session.active.run == "r-2"
    assert told(session.finish("r-2", Fault("EIO", "x"))) == "error done start message"
    assert told(session.finish("r-3")) == "done"
    assert session.active is None


def test_a_failed_run_says_error_then_done() -> None:
    session = new_session()
    session.send(Send(id="m1", input="x"), "r-1")
    error, done = read(session.finish("r-1", Fault("ETIMEDOUT", "too slow")))
    # abi.md 5.12
    assert error == frames.Error(id="3", run="r-1", request="m1", code="ETIMEDOUT", message="too slow")
    assert done == frames.Done(id="4", run="r-1", status="error", code="ETIMEDOUT")


def test_messages_that_wait_are_bounded() -> None:
    # abi.md 5.25
    session = new_session()
    for n in range(MAX_WAITING + 1):
        session.send(Send(input="x"), f"r-{n}")
    with pytest.raises(Fault, match="EAGAIN: 16 messages wait in this session"):
        session.send(Send(id="m", input="x"), "r-late")
    assert session.find("m") is None
    session.finish("r-0")
    assert session.send(Send(id="m", input="x"), "r-late")[0] == "r-late"


def test_the_same_id_again_is_the_same_run() -> None:
    # abi.md 5.14
    session = new_session()
    first = Send(id="m", input={"content": "x", "steps": [1]})
    _, log = session.send(first, "r-1")
    for number in range(3):  # while it is active, after its end, and read back from the log
        assert session.send(first, "r-2") == ("r-1", [])
        assert session.send(Send(id="m", input={"steps": [1], "content": "x"}), "r-2") == ("r-1", [])
        with pytest.raises(Fault, match='EINVAL: id: another message has the id "m"; use a new id'):
            session.send(Send(id="m", input={"content": "x", "steps": [2]}), "r-2")
        if number == 0:
            log += session.finish("r-1")
        session = replayed(log) if number == 1 else session
    assert session.runs.keys() == {"r-1"}


def test_the_same_id_again_while_it_waits() -> None:
    session = new_session()
    session.send(Send(input="x"), "r-1")
    session.send(Send(id="m", input="x"), "r-2")
    assert session.send(Send(id="m", input="x"), "r-3") == ("r-2", [])
    assert session.waiting == ("r-2",)


def test_messages_without_an_id_are_never_the_same() -> None:
    session = new_session()
    assert [session.send(Send(input="x"), run)[0] for run in ("r-1", "r-2")] == ["r-1", "r-2"]


def test_cancel() -> None:
    # abi.md 5.27
    session = new_session()
    with pytest.raises(Fault, match='ENOENT: there is no run "r-1" here'):
        session.cancel("r-1")
    _, log = session.send(Send(input="one"), "r-1")
    session.send(Send(id="m", input="two"), "r-2")
    session.send(Send(input="three"), "r-3")
    # a waiting run ends at once, and for clients that follow it has begun and ended
    log += session.cancel(session.find("m") or "")
    assert told(log[-3:]) == "start message done"
    assert session.waiting == ("r-3",)
    # an active run is ended by its runner, however often it is cancelled
    assert session.cancel("r-1") == session.cancel("r-1") == []
    log += session.emit("r-1", FRAMES["message"])  # "what was produced so far is kept"
    log += session.finish("r-1", Fault("ECANCELED", ""))
    assert told(log[-4:]) == "message done start message"
    ends = [frame for frame in read(log) if isinstance(frame, frames.Done)]
    assert {(end.run, end.status, end.code) for end in ends} == {
        ("r-1", "cancelled", "ECANCELED"),
        ("r-2", "cancelled", "ECANCELED"),
    }
    for run in ("r-1", "r-2"):
        with pytest.raises(Fault, match=f"EALREADY: the run {run} is over"):
            session.cancel(run)
    assert same(replayed(log), session)


def test_approve() -> None:
    session = new_session()
    session.send(Send(input="x"), "r-1")
    with pytest.raises(Fault, match='ENOENT: call: the run asks for no approval of "c"'):
        session.approve("r-1", "c")
    session.emit("r-1", FRAMES["approval"])
    session.emit("r-1", frames.Approval(call="d", name="n", input={}, effects=[], reason="x"))
    session.approve("r-1", "c")
    session.approve("r-1", "d")
    with pytest.raises(Fault, match='EALREADY: call: "c" was decided already'):
        session.approve("r-1", "c")
    session.finish("r-1")
    with pytest.raises(Fault, match="EALREADY: the run r-1 is over"):
        session.approve("r-1", "c")
    with pytest.raises(Fault, match="ENOENT"):
        session.approve("r-9", "c")


def long_log() -> list[LogEvent]:
    session = new_session()
    _, log = session.send(Send(id="a", input="one"), "r-1")
    session.send(Send(id="b", input="two"), "r-2")
    session.send(Send(id="c", input="three"), "r-3")
    log += session.emit("r-1", FRAMES["approval"]) + session.emit("r-1", FRAMES["delta"])
    log += session.cancel("r-2")
    log += session.finish("r-1", Fault("EIO", "x")) + session.emit("r-3", FRAMES["message"])
    return log + session.finish("r-3")


@each_of("cut", range(len(long_log()) + 1))
def test_a_crash_after_any_event(cut: int) -> None:
    # abi.md 5.30
    log = long_log()[:cut]
    begun = {event.run for event in log}
    over = {event.run for event in log if event.final}
    session = replayed(log)
    recovered = session.recover()
    assert {event.run for event in recovered if event.final} == begun - over
    for end in (frame for frame in read(recovered) if isinstance(frame, frames.Done)):
        assert (end.status, end.code) == ("error", "EIO")
    assert [event.number for event in log + recovered] == list(range(1, len(log + recovered) + 1))
    for run in begun:  # "exactly one of done", last, and after an error exactly when it failed
        mine = read([event for event in log + recovered if event.run == run])
        assert kinds(mine).count("done") == 1
        assert isinstance(mine[-1], frames.Done)
        assert (mine[-1].status == "error") == (kinds(mine).count("error") == 1)
    assert session.recover() == []
    assert same(replayed(log + recovered), session)
    assert told(session.send(Send(input="next"), "r-4")[1]) == "start message"


def test_the_log_holds_where_a_session_is() -> None:
    # abi.md 5.22
    session = new_session()
    _, log = session.send(Send(cwd="/work", input="x"), "r-1")
    log += session.finish("r-1")
    log += session.send(Send(input="x"), "r-2")[1] + session.finish("r-2")
    assert b'"cwd":"/work"' in log[0].line
    assert session.cwd == replayed(log).cwd == "/work"
    session.send(Send(cwd="/", input="x"), "r-3")
    assert session.cwd == "/"


def test_a_long_message_is_several_events() -> None:
    # abi.md 5.23
    session = new_session()
    _, log = session.send(Send(input="x" * MAX_LINE), "r-1")
    assert told(log) == "start message message"
    log += session.emit("r-1", frames.Delta(text="\n" * MAX_LINE))
    assert all(len(event.line) <= MAX_LINE for event in log)
    assert [event.number for event in log] == list(range(1, len(log) + 1))
    assert "".join(f.text for f in read(log) if isinstance(f, frames.Delta)) == "\n" * MAX_LINE
    assert same(replayed(log), session)


def test_what_is_too_large_to_log_changes_nothing() -> None:
    session = new_session()
    session.send(Send(input="x"), "r-1")
    with pytest.raises(Fault, match="EMSGSIZE"):
        session.emit("r-1", frames.Media(attachment="x" * MAX_LINE))
    assert session.last == 2
    assert told(session.finish("r-1")) == "done"


def test_after() -> None:
    # abi.md 5.18, 5.19
    session = new_session()
    assert session.position(None) == 0  # "An unknown session is empty and followed"
    session.send(Send(input="x"), "r-1")
    session.finish("r-1")
    assert [session.position(after) for after in (None, "1", "3")] == [0, 1, 3]
    for unknown in ("0", "4", "-1", "01", "1.0", " 1", "", "event-id", "٣", "9" * 5000):
        with pytest.raises(Fault, match="EINVAL: after: the session has no event"):
            session.position(unknown)


def test_a_log_that_was_shortened_in_front() -> None:
    log = long_log()
    session = new_session()
    for event in log[6:]:
        session.replay(event.line)
    assert (session.first, session.last) == (7, len(log))
    assert session.position(None) == session.position("6") == 6
    with pytest.raises(Fault, match="EINVAL"):
        session.position("5")
    assert session.recover() == []
    with pytest.raises(Fault, match="EALREADY"):
        session.cancel("r-1")


def test_numbers_may_leap() -> None:
    # abi.md 5.20: what a client saw and a power failure took has its number no more
    session = new_session()
    _, log = session.send(Send(input="x"), "r-1")
    session.leap(10)
    session.leap(5)
    log += session.emit("r-1", FRAMES["delta"]) + session.finish("r-1")
    assert [event.number for event in log] == [1, 2, 10, 11]
    again = replayed(log)
    assert same(again, session)
    for each in (session, again):
        assert (each.next, each.position("2"), each.position("10")) == (12, 2, 10)
        for unknown in ("3", "9", "12"):
            with pytest.raises(Fault, match="EINVAL"):
                each.position(unknown)


@each_of(
    "line",
    [
        b'{"type":"delta","id":"3","ru',
        b"",
        b"[]",
        b"\xff\n",
        b'{"type":"delta","run":"r-1"}',
        b'{"type":"delta","id":"x","run":"r-1"}',
        b'{"type":"delta","id":"2","run":"r-1"}',
        b'{"type":"start","id":"3","run":"r-1"}',
        b'{"type":"done","id":"3","run":"r-1","status":"error"}',
    ],
)
def test_a_damaged_log_is_noticed_and_changes_nothing(line: bytes) -> None:
    _, log = new_session().send(Send(input="x"), "r-1")
    session = replayed(log)
    with pytest.raises(Fault, match="EPROTO"):
        session.replay(line)
    assert same(session, replayed(log))


def test_a_later_versions_frames_are_counted_and_ignored() -> None:
    _, log = new_session().send(Send(input="x"), "r-1")
    session = replayed(log)
    session.replay(b'{"type":"hologram","id":"3","run":"r-1","x":[]}\n')
    session.replay(b'{"type":"weather","id":"4"}\n')
    assert told(session.recover()) == "error done"
    assert session.last == 6
