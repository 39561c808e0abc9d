"""The socket protocol without a socket, from both sides (abi.md 5): bytes in, values out.

A server's connection has a `LineSplitter` (lines.py) and a `Subscriptions` (the events of each session
that must still be sent). The `Session`s are shared by all connections. One request goes like this:

    for line in splitter.feed(data):              # requests.decode: a request, or a refusal to send as it is
        given.admit(key)                          # a Fault is answered by requests.refusal
        run, events = session.send(request, id)
        answers = given.answer(key, session, run) # frames to send now that are no events
        ...                                       # append the events, then send what `due` names

Rules: events reach a connection only from the log, in the order of their numbers, each once. The log is
read only as fast as its reader takes it, so nothing is buffered here. `ClientSide` checks received frames
against the same table of states as the server's sessions.
This file must never know sockets, files or time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec

from cortexfs.core import frames, lines
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.talk.requests import SessionKey
from cortexfs.core.talk.session import LogEvent, Session, State, step

# Sessions that one connection may follow, as each takes memory until the connection ends.
MAX_FOLLOWED = 1024


class ClientSide:
    """A client's side: the frames from one server, and the state of each run in them."""

    def __init__(self) -> None:
        self.runs: dict[str, State] = {}
        self._lines = lines.LineSplitter()
        self._newest: dict[str, int] = {}

    def receive(self, data: bytes) -> list[frames.AnyFrame]:
        """Returns the frames that `data` completes. Raises EPROTO if the server breaks the protocol."""
        return [frame for line in self._lines.feed(data) if (frame := self._frame(line)) is not None]

    def is_over(self, run: str) -> bool:
        return self.runs.get(run) == "over"

    def _frame(self, line: bytes | None) -> frames.AnyFrame | None:
        if line is None:
            raise Fault("EPROTO", f"the server sent a line over {frames.MAX_LINE} bytes")
        try:
            frame = frames.decode(line)
        except UNREADABLE:
            if is_foreign(line):
                return None
            raise Fault("EPROTO", "the server sent a line that is not a frame") from None
        if frame.run is not None and frame.id is not None:  # without an id it is an answer, and no event
            self._judge(frame.run, frame.id, frame)
        return frame

    def _judge(self, run: str, id_: str, frame: frames.AnyFrame) -> None:
        if not (id_.isascii() and id_.isdecimal() and len(id_) < 20):
            raise Fault("EPROTO", "the server sent an event id that is not a decimal number")
        newest = self._newest.get(run, 0)
        if int(id_) == newest:
            raise Fault("EPROTO", f"the server sent event {id_} twice")
        if int(id_) < newest:
            return  # older events, which a later resume has asked for
        status = frame.status if isinstance(frame, frames.Done) else None
        self.runs[run] = step(self.runs.get(run), lines.kind(frame), status) or "active"
        self._newest[run] = int(id_)


class _Kind(msgspec.Struct):
    type: str


_kinds = msgspec.json.Decoder(_Kind)
_TAGS = {str(each.__struct_config__.tag) for each in frames.Frame.__subclasses__()}


def is_foreign(line: bytes) -> bool:
    """Returns True if a line is a frame of a type that is unknown to this version. Readers ignore these."""
    try:
        return _kinds.decode(line).type not in _TAGS
    except UNREADABLE:
        return False


class Spans:
    """A set of event numbers, kept as the ascending bounds of its ranges: start, stop, start, stop."""

    def __init__(self) -> None:
        self._bounds: list[int] = []

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def add(self, start: int, stop: int) -> None:
        low, high = bisect_left(self._bounds, start), bisect_right(self._bounds, stop)
        self._bounds[low:high] = [start] * (low % 2 == 0) + [stop] * (high % 2 == 0)

    def gap(self, number: int, stop: int) -> range:
        """Returns the first range of numbers that are not in the set, from `number` on and below `stop`."""
        place = bisect_right(self._bounds, number)
        if place % 2:
            number, place = self._bounds[place], place + 1
        return range(number, min(stop, self._bounds[place]) if place < len(self._bounds) else stop)


class _Followed:
    """The events of one session that a connection wants, and those that it has."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.next = 0  # the number of the next event to read from the log
        self.after: int | None = None  # a resume wants every event after this number
        self.runs: set[str] = set()  # runs that are followed to their end

    def look(self, number: int) -> None:
        """Read on from `number`. A reader that follows already, and is not yet there, keeps its place."""
        self.next = min(self.next, number) if self.is_followed else number

    @property
    def is_followed(self) -> bool:
        return self.after is not None or bool(self.runs)

    def wants_all(self, due: range, heads: list[tuple[bytes, bytes, bytes]]) -> bool:
        """Returns True if lines of `due` with these heads can be sent undecoded, as all are wanted."""
        if not heads or int(heads[-1][1]) >= due.stop or int(heads[0][1]) < due.start:
            return False
        is_resumed = self.after is not None and due.start > self.after
        return is_resumed or {run.decode() for _, _, run in heads} <= self.runs


_UNFOLLOWED = _Followed()


class Subscriptions:
    """The events that were sent to one connection, and those that must still be sent, of all its sessions."""

    def __init__(self) -> None:
        self._entries: dict[SessionKey, _Followed] = {}

    @property
    def keys(self) -> tuple[SessionKey, ...]:
        return tuple(self._entries)

    def admit(self, key: SessionKey) -> bool:
        """Raises EAGAIN if this connection cannot follow one more session. Called before the session is
        changed. Returns True if the connection follows it already."""
        return self._of(key).is_followed

    def follow(self, key: SessionKey, after: int) -> None:
        """Handle a resume: follow every event after `after`, also future ones."""
        entry = self._of(key)
        entry.look(after + 1)
        entry.after = after if entry.after is None else min(after, entry.after)

    def follow_run(self, key: SessionKey, run: str, first: int) -> None:
        """Follow that run's events from `first` to its done, also beside a resume, which may end sooner."""
        entry = self._of(key)
        entry.look(first)
        entry.runs.add(run)

    def answer(self, key: SessionKey, session: Session, run: str) -> list[frames.Frame]:
        """Handle a send: follow its run. Events that this connection has received are not sent again. The
        returned frames stand for them, with the run and its end, and have no event ids."""
        state, spans = session.runs[run], self._of(key).spans
        opening = msgspec.structs.replace(session.opening, run=run, request=state.request)
        if state.status is not None and state.last in spans:
            return [opening, frames.Done(run=run, status=state.status, code=state.code)]
        self.follow_run(key, run, state.first or session.next)
        return [opening] if state.first in spans else []

    def due(self, key: SessionKey, last: int) -> range:
        """Returns the events to read next, up to `last`, the newest."""
        entry = self._entries.get(key, _UNFOLLOWED)
        return entry.spans.gap(entry.next, last + 1) if entry.is_followed else range(0)

    def take(self, key: SessionKey, event: LogEvent) -> bool:
        """Returns True if this event, which is the next in the log, must be sent. It then counts as sent."""
        entry = self._entries[key]
        entry.next = event.number + 1
        after = entry.after
        is_due = event.run in entry.runs or (after is not None and event.number > after)
        is_new = is_due and event.number not in entry.spans
        if is_new:
            entry.spans.add(event.number, event.number + 1)
        if event.final:
            entry.runs.discard(event.run)
        return is_new

    def take_lines(self, key: SessionKey, due: range, data: bytes) -> tuple[bytes, int]:
        """Returns the bytes to send of whole lines of the log from `due.start` on, and the number of finished
        bytes. Lines that are no events are skipped."""
        heads, entry = lines.HEAD.findall(data), self._entries[key]
        if entry.wants_all(due, heads) and len(heads) == data.count(b"\n"):
            entry.next = int(heads[-1][1]) + 1
            entry.spans.add(due.start, entry.next)
            entry.runs -= {run.decode() for type_, _, run in heads if type_ == b"done"}
            return data, len(data)
        parts, done = [], 0
        for line in data.splitlines(keepends=True):
            head = lines.HEAD.match(line)
            if head and int(head[2]) >= due.stop:
                break
            done += len(line)
            if head and int(head[2]) >= due.start:
                event = LogEvent(int(head[2]), head[3].decode(), head[1] == b"done", line)
                if self.take(key, event):
                    parts.append(line)
        return b"".join(parts), done

    def follows(self, key: SessionKey) -> bool:
        return self._entries.get(key, _UNFOLLOWED).is_followed

    def hears(self, key: SessionKey, run: str) -> bool:
        """Returns True if this connection receives the events of that run."""
        entry = self._entries.get(key, _UNFOLLOWED)
        return entry.after is not None or run in entry.runs

    @property
    def awaits_runs(self) -> bool:
        """Returns True if a run that this connection follows is not over."""
        return any(entry.runs for entry in self._entries.values())

    def abandon(self, key: SessionKey) -> list[str]:
        """Returns the followed runs, and stops following them, as the log has lost them."""
        entry = self._entries.get(key, _UNFOLLOWED)
        runs = sorted(entry.runs)
        entry.runs.clear()
        return runs

    def forget(self, key: SessionKey) -> None:
        """Forget a session that was deleted. A later session of the same name starts with no events."""
        self._entries.pop(key, None)

    def _of(self, key: SessionKey) -> _Followed:
        if key not in self._entries and len(self._entries) >= MAX_FOLLOWED:
            raise Fault("EAGAIN", f"this connection follows {MAX_FOLLOWED} sessions; open another one")
        return self._entries.setdefault(key, _Followed())
