"""The state of a session, as a fold over the lines of its log, and its next steps (abi.md 5).

Main path: `send` accepts a message, `emit` logs the output of its run, `finish` ends the run and begins
the next. Each returns the events to append, in order. The caller appends them, and then reports them.

Rules: only `replay` and the queue change the state. So a session that was read back from its log equals
the session that wrote it; call `recover` on it first. It runs one message at a time. Only this module
writes a run's `start`, `error` and `done`. A refused request has changed nothing. Returned events count
as appended: if the log could not take them, read the session back from the log.
This file must never know connections, files, time, or the code that answers messages.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from cortexfs.core import frames, lines
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped, shown
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import Send

# A bound for memory, as each message may have 1 MiB. A person seldom has more than one waiting.
MAX_WAITING = 16
# Each run takes a few hundred bytes, as retries are recognized for the whole life of a session.
MAX_RUNS = 50_000

State: TypeAlias = Literal["waiting", "active", "failed", "over"]
OUTPUT = (
    "delta", "message", "reasoning_delta", "tool_call", "tool_result", "progress", "observer", "media",
    "usage", "approval", "question",
)  # fmt: skip

# By state of a run and type of the next frame: the next state. Other frames cannot follow.
TRANSITIONS: dict[State, dict[str, State]] = {
    "waiting": {"start": "active"},
    "active": {
        **dict.fromkeys(OUTPUT, "active"),
        "error": "failed",
        "done ok": "over",
        "done cancelled": "over",
    },
    "failed": {"done error": "over"},
    "over": {},
}
_OUTPUT = tuple(each for each in frames.Frame.__subclasses__() if each.__struct_config__.tag in OUTPUT)
_KNOWN = {trigger.split()[0] for row in TRANSITIONS.values() for trigger in row}
# For a run of which the first frames are missing (after a resume, or in a shortened log).
_ANYWHERE = {trigger: after for row in TRANSITIONS.values() for trigger, after in row.items()}

# Returns a stable fingerprint of an input, which the log has in place of the input.
Digest: TypeAlias = Callable[[bytes], str]


class LogEvent(NamedTuple):
    """A line of the log, which subscribers receive as it is."""

    number: int
    run: str
    final: bool
    line: bytes


class Head(msgspec.Struct, frozen=True):
    """The fields of a logged line that change the state."""

    type: str
    id: str
    run: str | None = None
    request: str | None = None
    cwd: str | None = None
    digest: str | None = None
    call: str | None = None
    question: str | None = None
    status: frames.Status | None = None
    code: str | None = None


class LoggedStart(frames.Start, frozen=True, tag="start", kw_only=True):
    """The logged form of a start: with the time, the session's new working directory, and the digest that
    distinguishes a retry from another message with the same id."""

    ts: str | None = None
    cwd: str | None = None
    digest: str | None = None


class SessionRun(msgspec.Struct):
    """The facts about a run. An event that does not exist yet has the number 0."""

    request: str | None = None
    digest: str | None = None
    state: State = "waiting"
    first: int = 0
    last: int = 0
    status: frames.Status | None = None
    code: str | None = None
    asked: dict[str, bool] = {}  # by call that needs approval: True once it was decided
    questions: dict[str, bool] = {}  # by question of a tool: True once it was answered


class AcceptedMessage(NamedTuple):
    run: str
    request: Send


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """The values of a session without unfinished runs, for storage."""

    first: int
    last: int
    cwd: str | None
    runs: dict[str, SessionRun]
    leaps: list[tuple[int, int]]


_state_decoder = msgspec.msgpack.Decoder(_Kept)
_heads = msgspec.json.Decoder(Head)
_text = msgspec.json.Encoder()
# Deltas are most lines of a log. They change only the number of the next event.
_DELTA = re.compile(rb'\{"type":"delta","id":"([1-9][0-9]{0,17})","run":"([^"\\]+)","text":"')
# Characters of a SHORT delta. Each takes at most six bytes in JSON, and the head of the line needs room.
SHORT = frames.MAX_LINE // 8


def step(state: State | None, type_: str, status: str | None = None) -> State | None:
    """Returns the next state of a run. None is the state of an unknown run. Raises EPROTO for a frame that
    cannot follow."""
    trigger = f"{type_} {status}" if type_ == "done" else type_
    after = (TRANSITIONS[state] if state else _ANYWHERE).get(trigger)
    if after is None and type_ in _KNOWN:
        raise Fault("EPROTO", f"a {trigger} frame cannot follow in a run that is {state or 'unknown'}")
    return after or state  # frames of later versions change nothing


class Session:
    """A session of an object. `opening` names the object, as the session's start frames do."""

    def __init__(
        self, opening: frames.Start, digest: Digest, now: Callable[[], str | None] = lambda: None
    ) -> None:
        self.opening = opening
        self.first = 1  # the number of the first event that the log still has
        self.last = 0
        self.next = 1  # the number of the next event
        self.cwd: str | None = None
        self.runs: dict[str, SessionRun] = {}
        self.active: AcceptedMessage | None = None
        self._digest = digest
        self._now = now
        self._sends: dict[str, str] = {}
        self._waiting: deque[AcceptedMessage] = deque()
        self._leaps: list[range] = []  # the numbers between events that no event has

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(accepted.run for accepted in self._waiting)

    def find(self, id_: str) -> str | None:
        """Returns the run with that id, or the run of the send with that id, or None."""
        return id_ if id_ in self.runs else self._sends.get(id_)

    def position(self, after: str | None) -> int:
        """Returns the number of the event that `after` names. Raises EINVAL if there is no such event."""
        if after is None:
            return self.first - 1
        canonical = after.isascii() and after.isdecimal() and len(after) < 20 and not after.startswith("0")
        known = canonical and self.first - 1 <= int(after) <= self.last
        if not known or any(int(after) in leap for leap in self._leaps):
            raise Fault("EINVAL", f"after: the session has no event {shown(after)}; leave it out")
        return int(after)

    def replay(self, line: bytes) -> LogEvent:
        """Apply a line of the log to the state. Raises EPROTO for a line that cannot follow, as the log is
        damaged there."""
        if (delta := _DELTA.match(line)) and (event := self._replay_delta(delta, line)):
            return event
        try:
            head = _heads.decode(line)
            number = int(head.id)
        except (ValueError, RecursionError):
            raise Fault("EPROTO", f"the line after event {self.last} is not an event") from None
        if number <= self.last:
            raise Fault("EPROTO", f"event {number} cannot follow event {self.last}")
        run = self._fold(head, number)
        self._leave_gap(number)
        self.first, self.last, self.next = (self.first if self.last else number), number, number + 1
        return LogEvent(number, head.run or "", run is not None and run.state == "over", line)

    def values(self) -> bytes:
        """Returns the values of this session for `restore`."""
        leaps = [(leap.start, leap.stop) for leap in self._leaps]
        return msgspec.msgpack.encode(_Kept(self.first, self.last, self.cwd, self.runs, leaps))

    def restore(self, data: bytes) -> None:
        """Take over the values of `data`, in place of a replay up to there."""
        state = _state_decoder.decode(data)
        self.first, self.last, self.next, self.cwd = state.first, state.last, state.last + 1, state.cwd
        self.runs = state.runs
        self._sends = {run.request: id_ for id_, run in state.runs.items() if run.request is not None}
        self._leaps = [range(*leap) for leap in state.leaps]

    def _leave_gap(self, number: int) -> None:
        if self.last and number > self.last + 1:
            self._leaps.append(range(self.last + 1, number))

    def _replay_delta(self, delta: re.Match[bytes], line: bytes) -> LogEvent | None:
        """Returns the event of a delta that follows in an active run, or None. The general way takes five
        times as long."""
        number, run = int(delta[1]), delta[2].decode(errors="replace")
        known = self.runs.get(run)
        if known is None or known.state != "active" or number != self.last + 1:
            return None
        self.last, self.next = number, number + 1
        return LogEvent(number, run, False, line)

    def leap(self, number: int) -> None:
        """Go on with this number, as clients may have seen earlier numbers that a power failure lost."""
        self.next = max(self.next, number)

    def _fold(self, head: Head, number: int) -> SessionRun | None:
        if head.run is None:
            return None
        run = self.runs.get(head.run) or SessionRun()
        run.state = step(run.state if head.run in self.runs else None, head.type, head.status) or "active"
        self.runs[head.run] = run
        if head.type == "start":
            run.first, run.request, run.digest = number, head.request, head.digest
            self.cwd = head.cwd or self.cwd
            if head.request is not None:
                self._sends[head.request] = head.run
        elif head.type == "approval" and head.call is not None:
            run.asked[head.call] = False
        elif head.type == "question" and head.question is not None:
            run.questions[head.question] = False
        elif head.type == "done":
            run.last, run.status, run.code = number, head.status, head.code
        return run

    def recover(self) -> list[LogEvent]:
        """End the runs that were active when the log stopped. Called after the replay of a log."""
        reason = Fault("EIO", "the daemon stopped during this run; send the message again under another id")
        ids = [id_ for id_, run in self.runs.items() if run.state != "over"]
        return [event for id_ in ids for event in self._end(id_, reason)]

    def send(self, request: Send, run: str) -> tuple[str, list[LogEvent]]:
        """Accept a message as `run`, which begins when it is its turn, or return the run of a retry."""
        digest = None
        if request.id is not None:
            digest = self._digest(_canonical(request.input))
            if (known := self._sends.get(request.id)) is not None:
                if self.runs[known].digest != digest:
                    raise Fault("EINVAL", f"id: another message has the id {shown(request.id)}; use a new id")
                return known, []
        if len(self.runs) >= MAX_RUNS:
            raise Fault("EFBIG", f"the session has {MAX_RUNS} messages, which is the limit; begin another")
        if len(self._waiting) >= MAX_WAITING:
            raise Fault("EAGAIN", f"{MAX_WAITING} messages wait in this session; send again when one is done")
        self.runs[run] = SessionRun(request.id, digest)
        if request.id is not None:
            self._sends[request.id] = run
        self._waiting.append(AcceptedMessage(run, request))
        return run, self._next()

    def emit(self, run: str, *output: frames.Frame) -> list[LogEvent]:
        """Log the output of the active run. A text over 1 MiB becomes several events."""
        is_active = self.active is not None and self.active.run == run
        for frame in output:
            if not is_active or not isinstance(frame, _OUTPUT):
                raise Fault("EPROTO", f"the run {run} cannot produce a {lines.kind(frame)} frame now")
        return self._append(run, *output)

    def emit_deltas(self, run: str, texts: Sequence[str]) -> list[bytes]:
        """Returns the lines of many SHORT deltas, as `emit` would. Fast models send almost only deltas."""
        if self.active is None or self.active.run != run or self.runs[run].state != "active":
            raise Fault("EPROTO", f"the run {run} cannot produce a delta frame now")
        rest, first = b'","run":"%b","text":' % run.encode(), self.next
        found = [
            b'{"type":"delta","id":"%d%b%b}\n' % (number, rest, _text.encode(text))
            for number, text in enumerate(texts, first)
        ]
        if found:
            self._leave_gap(first)
            self.last, self.next = first + len(found) - 1, first + len(found)
        return found

    def finish(self, run: str, fault: Fault | None = None) -> list[LogEvent]:
        """End the active run, with success or with `fault` (ECANCELED: cancelled), and begin the next."""
        self._unfinished(run)
        if self.active is None or self.active.run != run:
            raise Fault("EPROTO", f"the run {run} has not begun")
        self.active = None
        return self._end(run, fault) + self._next()

    def cancel(self, run: str) -> list[LogEvent]:
        """End a waiting run. The caller must stop an active run itself, and then call `finish`."""
        self._unfinished(run)
        for accepted in self._waiting:
            if accepted.run == run:
                self._waiting.remove(accepted)
                return self._begin(accepted) + self._end(run, Fault("ECANCELED", ""))
        return []

    def forget_waiting(self) -> None:
        """Begin none of the messages that wait. The log has none of them, so they can be sent again."""
        self._waiting.clear()

    def approve(self, run: str, call: str) -> None:
        """Note the decision about that call. Raises ENOENT if it needs none, or EALREADY for a second one."""
        approvals = self._unfinished(run).asked
        if call not in approvals:
            raise Fault("ENOENT", f"call: the run asks for no approval of {shown(call)}")
        if approvals[call]:
            raise Fault("EALREADY", f"call: {shown(call)} was decided already")
        approvals[call] = True

    def answer(self, run: str, question: str) -> None:
        """Note the answer to that question, with the same faults."""
        questions = self._unfinished(run).questions
        if question not in questions:
            raise Fault("ENOENT", f"question: the run has no question {shown(question)}")
        if questions[question]:
            raise Fault("EALREADY", f"question: {shown(question)} was answered already")
        questions[question] = True

    def _unfinished(self, run: str) -> SessionRun:
        state = self.runs.get(run)
        if state is None:
            raise unknown(run)
        if state.state == "over":
            raise Fault("EALREADY", f"the run {run} is over")
        return state

    def _next(self) -> list[LogEvent]:
        if self.active is not None or not self._waiting:
            return []
        self.active = self._waiting.popleft()
        return self._begin(self.active)

    def _begin(self, accepted: AcceptedMessage) -> list[LogEvent]:
        run, request = accepted
        fields = msgspec.structs.asdict(self.opening) | {"request": request.id}
        start = LoggedStart(**fields, ts=self._now(), cwd=request.cwd, digest=self.runs[run].digest)
        user = frames.Message(role="user", content=requests.newest_text(request.input))
        return self._append(run, start, user)

    def _end(self, run: str, fault: Fault | None) -> list[LogEvent]:
        code, events, state = fault.code if fault else None, [], self.runs[run]
        status = frames.ENDS.get(code, "error")
        if fault and status == "error" and state.state == "active":  # in "failed", only the done is missing
            message = clipped(fault.message)
            events = self._append(run, frames.Error(request=state.request, code=fault.code, message=message))
        return events + self._append(run, frames.Done(status=status, code=code))

    def _append(self, run: str, *output: frames.Frame) -> list[LogEvent]:
        """Make lines of frames, and apply them to the state as when a log is read."""
        return [self.replay(line) for line in lines.events(output, run, self.next)]


def _canonical(value: requests.Input) -> bytes:
    """Returns the same bytes for equal inputs, in any order of their fields. msgspec does not sort them:
    its sort is quadratic for some orders, and crashes for 100,000 fields in such an order (0.22)."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def unknown(run: str) -> Fault:
    """Returns the fault for a run that is in no session which the client may see."""
    return Fault("ENOENT", f"there is no run {shown(run)} here")
