"""A conversation with an object, for programs without an event loop.

Rules: threads may share a conversation. One thread at a time reads for all: it sorts the frames that arrive
and wakes the others. A writer reads while it writes, so two full pipes cannot wait for each other. If an
interrupt (Ctrl-C) leaves a request half written, its rest is written before the next request. `send` and
`resume` connect again after a connection is lost, and go on after the last frame that was read. If the first
attempt to connect fails, the caller learns it at once. Each attempt sends the message under the same id, so
it stays one run. The daemon shows that run again from its start, and the frames that were read are left out.
A `temp` session ends with its connection, for good.
This file must never know which frame belongs to which request (sorting.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cortexfs.client import places
from cortexfs.client.results import Failed
from cortexfs.client.sorting import Inbox, Sorter, new_id
from cortexfs.core.frames import AnyFrame, Done
from cortexfs.core.talk.requests import (
    AnyRequest,
    Approve,
    Cancel,
    Decision,
    Input,
    Ping,
    Respond,
    Resume,
    Scope,
    Send,
    Take,
)

READ_BYTES = 1 << 18  # the most that a Unix socket holds by default (net.core.wmem_default)
LOOK_MS = 100  # how often a writer checks whether it must read
# A signal may arrive after Python's check for signals and before the kernel waits. It is handled after this.
SIGNAL_MS = 1000
# Seconds before each attempt to connect again; each frame starts them anew. They last half a minute in all,
# several times the time that a daemon needs to stop and start.
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 30)
# Errors after which it helps to wait: of a connection, and of an attempt to connect. While the daemon is
# away, its mount may be away too.
LOST = frozenset({"EHOSTDOWN"})
AWAY = frozenset({"EHOSTDOWN", "ENOENT", "EACCES", "EAGAIN"})


class Stream(Iterator[AnyFrame]):
    """The frames that answer one request. `id` is the id of the request, `run` that of the run once it has
    begun, `last` that of the newest event read. An exception (Ctrl-C too) does not end a stream: read on."""

    def __init__(self, conversation: Conversation, inbox: Inbox) -> None:
        self._conversation = conversation
        self._inbox = inbox

    @property
    def id(self) -> str | None:
        return self._inbox.id

    @property
    def run(self) -> str | None:
        return self._inbox.run

    @property
    def last(self) -> str | None:
        return self._inbox.last

    def close(self) -> None:
        """Drop the frames that come from now on. The run itself goes on."""
        self._inbox.stop()

    def __next__(self) -> AnyFrame:
        if not self._inbox.is_ready:
            self._conversation.wait(lambda: self._inbox.is_ready)
        frame = self._inbox.take()
        if frame is None:
            raise StopIteration
        return frame


class Conversation:
    """One connection to the object (or socket) at `path`, a name or a path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises Failed, which says what to do, if the connection cannot be made."""
        place = places.socket_path(path)
        self._sorter = Sorter(place)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._changed = threading.Condition()  # guards the sorter and `_reader`
        self._reader: int | None = None  # the thread that reads for all threads
        self._writing = threading.Lock()
        self._unsent = bytearray()
        self._all: Inbox | None = None
        try:
            with places.address(place) as short:
                self._socket.connect(short)
        except BaseException as problem:  # an interrupt too: it passes on, and this is the only reference
            self._socket.close()
            if isinstance(problem, OSError):
                raise places.refused(place, problem) from None
            raise

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def send(
        self,
        input: Input,
        *,
        session: str = "default",
        scope: Scope = "private",
        cwd: str | None = None,
        id: str | None = None,
    ) -> Stream:
        """Send a message. Returns the frames of its run, up to done. Without an `id` the message gets a new
        one. To send it again after an accident without sending it twice, pass `id=stream.id`."""
        return self._ask(Send(input=input, session=session, scope=scope, cwd=cwd, id=id or new_id()))

    def resume(
        self, *, session: str = "default", scope: Scope = "private", after: str | None = None
    ) -> Stream:
        """Returns every event of the session after the event `after`, then the new events until you leave.
        Events that this connection has received already do not come again."""
        return self._ask(Resume(session=session, scope=scope, after=after, id=new_id()))

    def cancel(self, id: str) -> Done:
        """End a run, by its id or the id of its send. Returns its done frame: how it really ended."""
        for frame in self._ask(Cancel(id=id)):
            if isinstance(frame, Done):
                return frame
        raise Failed("ECANCELED", "this conversation was closed")

    def approve(self, run: str, call: str, decision: Decision, input: dict[str, Any] | None = None) -> None:
        """Decide the call of an approval frame; with `input`, the call is allowed once with that input
        instead. Raises Failed if the call cannot be decided."""
        self._decide(Approve(run=run, call=call, decision=decision, input=input, id=new_id()))

    def answer(self, run: str, question: str, content: dict[str, Any] | None = None) -> None:
        """Answer the question frame of a tool; without `content`, decline it. Raises Failed if it cannot
        be."""
        self._decide(Respond(run=run, question=question, content=content, id=new_id()))

    def _decide(self, request: Approve | Respond) -> None:
        refused = self._opened(request)
        heard = self._opened(ping := Ping(id=new_id()))
        self._write(self._sorter.encode(request) + self._sorter.encode(ping))
        self.wait(lambda: refused.is_settled or heard.is_settled)
        refused.take()
        heard.take()

    def ping(self) -> float:
        """Returns the seconds that an answer takes."""
        before = time.perf_counter()
        for _ in self._ask(Ping(id=new_id())):
            pass
        return time.perf_counter() - before

    def take(self, session: str, force: bool = False) -> None:
        """Move a session of the team to this machine; with `force`, even from a machine that is there."""
        for _ in self._ask(Take(id=new_id(), session=session, force=force)):
            pass

    def request(self, request: AnyRequest) -> None:
        """Write a request without waiting. `frames` yields the answers from the first such request on."""
        line = self._sorter.encode(request)
        self.frames()
        if isinstance(request, Send):
            with self._changed:
                self._sorter.note(request)
        self._write(line)

    def frames(self) -> Stream:
        """Returns every frame that arrives, in order, from all requests."""
        with self._changed:
            self._all = self._all or self._sorter.open()
        return Stream(self, self._all)

    def waiting(self) -> list[AnyFrame]:
        """Returns the items of `frames` that have arrived, without waiting. Call it when an event loop
        reports that `fileno` is readable. Raises Failed when nothing has arrived and nothing can any more."""
        self.frames()
        self._read_at_once()
        with self._changed:
            assert self._all is not None
            return self._all.take_kept()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. Runs of private and shared sessions go on."""
        with self._changed:
            self._sorter.close()
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that is reading
        with self._changed:
            self._changed.wait_for(lambda: self._may_read)
            self._socket.close()

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Read, or let another thread read, until `is_ready()` is true."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: is_ready() or self._may_read)
                if is_ready():
                    return
                self._take_turn()
            self._read()

    def _ask(self, request: AnyRequest) -> Stream:
        line = self._sorter.encode(request)
        stream = Stream(self, self._opened(request))
        self._write(line)
        return stream

    def _opened(self, request: AnyRequest) -> Inbox:
        with self._changed:
            return self._sorter.open(request)

    @property
    def _may_read(self) -> bool:
        # An interrupt may have kept this very thread from giving its turn back.
        return self._reader in (None, threading.get_ident())

    def _take_turn(self) -> None:
        self._sorter.check_room()
        self._reader = threading.get_ident()

    def _read(self) -> None:
        """Receive and sort the next data. The calling thread must have the turn to read."""
        data = None
        try:
            if self._can(select.POLLIN, SIGNAL_MS):
                data = self._socket.recv(READ_BYTES)
        except OSError:
            data = b""  # reset by the other side, or closed by this side: the end in both cases
        finally:
            with self._changed:
                self._reader = None
                if data is not None:
                    self._sorter.receive(data)
                self._changed.notify_all()

    def _write(self, lines: bytes) -> None:
        with self._writing:
            self._unsent += lines
            while self._unsent:
                try:
                    sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    del self._unsent[:sent]
                except BlockingIOError:
                    # Wait until more can be written. Read meanwhile, unless another thread reads.
                    events = select.POLLOUT | (select.POLLIN if self._may_read else 0)
                    if self._can(events, LOOK_MS) & select.POLLIN:
                        self._read_at_once()
                except OSError:  # the peer is gone: the frames that it sent before tell why
                    self.wait(lambda: self._sorter.fault is not None)
                    return self._sorter.check()

    def _read_at_once(self) -> None:
        """Read the data that is there without waiting, unless another thread reads."""
        with self._changed:
            if self._sorter.fault or not self._may_read or not self._can(select.POLLIN, 0):
                return
            self._take_turn()
        self._read()

    def _can(self, events: int, ms: int) -> int:
        poll = select.poll()
        poll.register(self._socket, events)
        return dict(poll.poll(ms)).get(self._socket.fileno(), 0)


def send(
    path: str | os.PathLike[str],
    input: Input,
    *,
    session: str = "default",
    scope: Scope = "private",
    cwd: str | None = None,
    id: str | None = None,
    pauses: Sequence[float] = PAUSES,
) -> Iterator[AnyFrame]:
    """Send a message on a connection of its own. Yields the frames of its run up to done, each once, even if
    the daemon restarts meanwhile."""
    id = id or new_id()

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.send(input, session=session, scope=scope, cwd=cwd, id=id)

    return _lasting(path, ask, () if scope == "temp" else pauses)


def resume(
    path: str | os.PathLike[str],
    *,
    session: str = "default",
    scope: Scope = "private",
    after: str | None = None,
    pauses: Sequence[float] = PAUSES,
) -> Iterator[AnyFrame]:
    """Yields every event of a session after the event `after`, then new ones, each once, until you stop."""

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.resume(session=session, scope=scope, after=after)

    return _lasting(path, ask, () if scope == "temp" else pauses, after)


def _lasting(
    path: str | os.PathLike[str],
    ask: Callable[[Conversation, str | None], Stream],
    pauses: Sequence[float],
    after: str | None = None,
) -> Iterator[AnyFrame]:
    remaining: Iterator[float] | None = None  # the pauses that remain; None until the first connection
    while True:
        mendable = AWAY
        try:
            with Conversation(path) as conversation:
                mendable, remaining = LOST, remaining or iter(pauses)
                for frame in ask(conversation, after):
                    if frame.id is None or after is None or int(frame.id) > int(after):
                        after, remaining = frame.id or after, iter(pauses)
                        yield frame
                return
        except Failed as failed:
            pause = next(remaining, None) if remaining and failed.code in mendable else None
            if pause is None:
                raise
        time.sleep(pause)
