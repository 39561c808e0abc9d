"""Server and client on a fake wire with sessions between them, which behave like a daemon without being one.

Each test of one side also tests the other. `World.restart` is a kill -9, after which only the log is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from cortexfs.core import frames, lines
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.lines import LineSplitter
from cortexfs.core.talk import requests
from cortexfs.core.talk.protocol import ClientSide, Subscriptions
from cortexfs.core.talk.requests import Approve, Cancel, Ping, Refusal, Respond, Resume, Send, SessionKey
from cortexfs.core.talk.session import LogEvent, Session, unknown

OPENING = frames.Start(model="debug/echo")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def new_session() -> Session:
    return Session(OPENING, digest)


class World:
    """Sessions with their logs, and the connections that share the sessions."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo  # True if messages are answered at once
        self.sessions: dict[SessionKey, Session] = {}
        self.logs: dict[SessionKey, list[LogEvent]] = {}
        self.connections: list[Connection] = []
        self.decisions: list[Approve] = []
        self.answers: list[Respond] = []
        self.total = 0

    def connect(self, uid: int = 1000) -> Connection:
        self.total += 1
        self.connections.append(Connection(self, uid, self.total))
        return self.connections[-1]

    def session(self, key: SessionKey) -> Session:
        self.logs.setdefault(key, [])
        return self.sessions.setdefault(key, new_session())

    def of(self, run: str, uid: int | None = None) -> tuple[SessionKey, Session, str]:
        """Returns the key, the session and the id of a run, for users who may know of it."""
        for key, session in self.sessions.items():
            if (found := session.find(run)) and (uid is None or key.scope != "private" or key.owner == uid):
                return key, session, found
        raise unknown(run)

    def append(self, key: SessionKey, events: list[LogEvent]) -> None:
        self.logs[key] += events
        active = self.session(key).active
        if self.echo and active and self.session(key).runs[active.run].state == "active":
            self.emit(active.run, *spoken(requests.newest_text(active.request.input)[0].text))
            self.finish(active.run)
        for connection in self.connections:
            connection.follow_up()

    def emit(self, run: str, *produced: frames.Frame) -> None:
        key, session, _ = self.of(run)
        for frame in produced:
            self.logs[key] += session.emit(run, frame)
        for connection in self.connections:
            connection.follow_up()

    def finish(self, run: str, fault: Fault | None = None) -> None:
        key, session, _ = self.of(run)
        self.append(key, session.finish(run, fault))

    def restart(self) -> None:
        """Kill and restart the daemon: connections and memory are gone, files stay."""
        self.connections.clear()
        for key in [key for key in self.logs if key.scope == "temp"]:
            del self.logs[key], self.sessions[key]
        for key, log in self.logs.items():
            self.sessions[key] = new_session()
            assert [self.sessions[key].replay(event.line) for event in log] == log
            log += self.sessions[key].recover()


def spoken(text: str) -> list[frames.Frame]:
    """The answer of debug/echo: a delta for each word, then the whole text."""
    said: list[frames.Frame] = [frames.Delta(text=word) for word in text.split()]
    said.append(frames.Message(role="assistant", content=[frames.Text(text)]))
    return [*said, frames.Usage(input_tokens=1, output_tokens=len(said))]


class Connection:
    """Both ends of one connection."""

    def __init__(self, world: World, uid: int, number: int) -> None:
        self.world, self.uid, self.number = world, uid, number
        self.server, self.client = LineSplitter(), ClientSide()
        self.given = Subscriptions()
        self.reads = True
        self.sent = b""  # all bytes from the server
        self._read = 0

    def ask(self, request: requests.AnyRequest) -> list[AnyFrame]:
        return self.raw(requests.encode(request))

    def raw(self, data: bytes) -> list[AnyFrame]:
        """Send these bytes, and return the frames that come back at once."""
        for line in self.server.feed(data):
            self._hear(requests.decode(line))
        return self.read()

    def read(self) -> list[AnyFrame]:
        new, self._read = self.sent[self._read :], len(self.sent)
        return self.client.receive(new) if new else []

    def leave(self) -> None:
        self.world.connections.remove(self)

    def _hear(self, heard: requests.AnyRequest | Refusal) -> None:
        if isinstance(heard, Refusal):
            self.sent += lines.encode(heard)
            return
        try:
            _ANSWERS[type(heard)](self, heard)
        except Fault as fault:
            self.sent += lines.encode(requests.refusal(fault, heard.id))

    def _send(self, request: Send) -> None:
        self.world.total += 1
        key = SessionKey.of(request, self.uid, self.number)
        self.given.admit(key)
        run, events = self.world.session(key).send(request, f"r-{self.world.total}")
        for frame in self.given.answer(key, self.world.session(key), run):
            self.sent += lines.encode(frame)
        self.world.append(key, events)

    def _resume(self, request: Resume) -> None:
        key = SessionKey.of(request, self.uid, self.number)
        self.given.follow(key, self.world.session(key).position(request.after))
        self.follow_up()

    def _cancel(self, request: Cancel) -> None:
        key, session, run = self.world.of(request.id, self.uid)
        self.given.admit(key)
        start = session.next
        events = session.cancel(run)
        self.given.follow_run(key, run, start)
        self.world.append(key, events)
        if session.runs[run].state != "over":
            self.world.finish(run, Fault("ECANCELED", ""))

    def _approve(self, request: Approve) -> None:
        _, session, run = self.world.of(request.run, self.uid)
        session.approve(run, request.call)
        self.world.decisions.append(request)

    def _answer_tool(self, request: Respond) -> None:
        _, session, run = self.world.of(request.run, self.uid)
        session.answer(run, request.question)
        self.world.answers.append(request)

    def _ping(self, request: Ping) -> None:
        self.sent += lines.encode(frames.Pong(request=request.id))

    def follow_up(self) -> None:
        """Send the due events, unless this client does not read."""
        for key in self.given.keys if self.reads else ():
            log = self.world.logs[key]
            while due := self.given.due(key, len(log)):
                data = b"".join(log[number - 1].line for number in due)
                self.sent += self.given.take_lines(key, due, data)[0]


_ANSWERS: dict[type, Callable[[Connection, Any], None]] = {
    Send: Connection._send,
    Resume: Connection._resume,
    Cancel: Connection._cancel,
    Approve: Connection._approve,
    Respond: Connection._answer_tool,
    Ping: Connection._ping,
}


def kinds(heard: list[AnyFrame]) -> str:
    """Returns the types of the frames in one line."""
    return " ".join(lines.kind(frame) for frame in heard)


def texts(heard: list[AnyFrame]) -> list[str]:
    return [frame.text for frame in heard if isinstance(frame, frames.Delta)]


def ids(heard: list[AnyFrame]) -> list[int]:
    return [int(frame.id) for frame in heard if frame.id is not None]
