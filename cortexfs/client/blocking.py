"""A conversation with an object, for programs without an event loop.

Rules: whoever waits for a frame reads for everybody: one thread at a time reads, sorts what came, and wakes
the others, so a conversation may be shared by threads. A request is written while what comes meanwhile
is read, so two full pipes cannot wait for each other. What an interrupt (Ctrl-C) left half written is
written before the next request.
A connection that once stood is made again by `send` and `resume`, which go on after what was read; who calls
somebody who is not there learns it at once. There a message is said under one id however often it is sent, so
its run is the same one and is shown again from its start; what was read of it is left out. A `temp` session
ends with its connection, for good.
This file must never know which frame belongs to whom (sorting.py).
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

READ_BYTES = 1 << 18  # what a Unix socket holds at most by default (net.core.wmem_default)
LOOK_MS = 100  # how often a writer looks whether it must read for itself
# A signal that comes between Python's look for signals and the wait of the kernel is heard of after this.
SIGNAL_MS = 1000
# Seconds before each attempt to connect again, all of them anew after each frame: half a minute in all,
# several times what a daemon needs to stop and start.
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 30)
# What may be mended by waiting, of a connection and of the attempt to make one: while the daemon is away, its
# mount may be away too.
LOST = frozenset({"EHOSTDOWN"})
AWAY = frozenset({"EHOSTDOWN", "ENOENT", "EACCES", "EAGAIN"})


class Stream(Iterator[AnyFrame]):
    """The frames that answer one request. `id` is the request's, `run` the run's once it has begun, `last`
    the id of the newest event that was read. An exception (Ctrl-C too) does not end it: read on."""

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
        """Forget what comes: the run itself goes on."""
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
        """Failed with the mend, where nobody can be reached there."""
        place = places.socket_path(path)
        self._sorter = Sorter(place)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._changed = threading.Condition()  # guards the sorter and who reads
        self._reader: int | None = None  # the thread that reads for all
        self._writing = threading.Lock()
        self._unsent = bytearray()
        self._all: Inbox | None = None
        try:
            with places.address(place) as short:
                self._socket.connect(short)
        except BaseException as problem:  # an interrupt, say: it goes on, and nobody else has the connection
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
        """Say something; the frames of its run, up to done. Without an `id` it gets one of its own, so
        that saying it again after an accident (with `id=stream.id`) does not say it twice."""
        return self._ask(Send(input=input, session=session, scope=scope, cwd=cwd, id=id or new_id()))

    def resume(
        self, *, session: str = "default", scope: Scope = "private", after: str | None = None
    ) -> Stream:
        """Every event of the session after the event `after`, then what happens, until you leave. What
        this connection was given already is not given again."""
        return self._ask(Resume(session=session, scope=scope, after=after, id=new_id()))

    def cancel(self, id: str) -> Done:
        """End a run, by its id or that of its send; its done, which says how it ended in fact."""
        for frame in self._ask(Cancel(id=id)):
            if isinstance(frame, Done):
                return frame
        raise Failed("ECANCELED", "this conversation was closed")

    def approve(self, run: str, call: str, decision: Decision, input: dict[str, Any] | None = None) -> None:
        """Decide a call for which an approval frame asked, or allow it once with another `input`; Failed if
        it cannot be decided."""
        self._decide(Approve(run=run, call=call, decision=decision, input=input, id=new_id()))

    def answer(self, run: str, question: str, content: dict[str, Any] | None = None) -> None:
        """Answer the question frame of a tool, or decline it; Failed if it cannot be answered."""
        self._decide(Respond(run=run, question=question, content=content, id=new_id()))

    def _decide(self, request: Approve | Respond) -> None:
        refused = self._opened(request)
        heard = self._opened(ping := Ping(id=new_id()))
        self._write(self._sorter.encode(request) + self._sorter.encode(ping))
        self.wait(lambda: refused.is_settled or heard.is_settled)
        refused.take()
        heard.take()

    def ping(self) -> float:
        """How many seconds an answer takes."""
        before = time.perf_counter()
        for _ in self._ask(Ping(id=new_id())):
            pass
        return time.perf_counter() - before

    def take(self, session: str, force: bool = False) -> None:
        """Have a session of the team be this machine's, by force where the one that has it is there."""
        for _ in self._ask(Take(id=new_id(), session=session, force=force)):
            pass

    def request(self, request: AnyRequest) -> None:
        """Write a request and wait for nothing; `frames` gives what comes, from the first of these on."""
        line = self._sorter.encode(request)
        self.frames()
        if isinstance(request, Send):
            with self._changed:
                self._sorter.note(request)
        self._write(line)

    def frames(self) -> Stream:
        """Everything that comes, in order, whatever asked for it."""
        with self._changed:
            self._all = self._all or self._sorter.open()
        return Stream(self, self._all)

    def waiting(self) -> list[AnyFrame]:
        """Returns those of `frames` that are here now, without waiting: for when an event loop says that
        `fileno` can be read. Raises Failed when there is nothing and can be nothing any more."""
        self.frames()
        self._read_at_once()
        with self._changed:
            assert self._all is not None
            return self._all.take_kept()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Leave. Runs of private and shared sessions go on without us."""
        with self._changed:
            self._sorter.close()
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        with self._changed:
            self._changed.wait_for(lambda: self._may_read)
            self._socket.close()

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Read, or let another thread read, until then."""
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
        # An interrupt may have kept this very thread from saying that its turn is over.
        return self._reader in (None, threading.get_ident())

    def _take_turn(self) -> None:
        self._sorter.check_room()
        self._reader = threading.get_ident()

    def _read(self) -> None:
        """Take in what comes next, as the one whose turn it is."""
        data = None
        try:
            if self._can(select.POLLIN, SIGNAL_MS):
                data = self._socket.recv(READ_BYTES)
        except OSError:
            data = b""  # reset by the other side, or closed by ours: the end in any case
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
                    # Wait until more can be written, reading what comes unless somebody else does.
                    wanted = select.POLLOUT | (select.POLLIN if self._may_read else 0)
                    if self._can(wanted, LOOK_MS) & select.POLLIN:
                        self._read_at_once()
                except OSError:  # nobody listens: what was said before that tells why
                    self.wait(lambda: self._sorter.fault is not None)
                    return self._sorter.check()

    def _read_at_once(self) -> None:
        """Reads as far as that needs no waiting, unless another thread reads."""
        with self._changed:
            if not self._may_read or not self._can(select.POLLIN, 0):
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
    """Say something on a connection of its own; the frames of its run, up to done, each once, also when the
    daemon is started again meanwhile."""
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
    """Every event of a session after the event `after`, then what happens, each once, until you stop."""

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.resume(session=session, scope=scope, after=after)

    return _lasting(path, ask, () if scope == "temp" else pauses, after)


def _lasting(
    path: str | os.PathLike[str],
    ask: Callable[[Conversation, str | None], Stream],
    pauses: Sequence[float],
    after: str | None = None,
) -> Iterator[AnyFrame]:
    left: Iterator[float] | None = None  # the pauses before we give up; None until a connection stood
    while True:
        mendable = AWAY
        try:
            with Conversation(path) as conversation:
                mendable, left = LOST, left or iter(pauses)
                for frame in ask(conversation, after):
                    if frame.id is None or after is None or int(frame.id) > int(after):
                        after, left = frame.id or after, iter(pauses)
                        yield frame
                return
        except Failed as failed:
            pause = next(left, None) if left and failed.code in mendable else None
            if pause is None:
                raise
        time.sleep(pause)
