"""A conversation with an object, for programs that run Trio.

Rules: whoever waits for a frame reads for everybody, one task at a time. Cancelling whoever waits leaves the
conversation as it was: nothing that came is lost, and what was half written is written before the next
request; the run itself goes on.
This file must never know which frame belongs to whom (client/sorting.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

import trio

from cortexfs.client import blocking, places
from cortexfs.client.asking import Asking, Heard
from cortexfs.client.results import Failed
from cortexfs.client.sorting import Inbox, Sorter, new_id
from cortexfs.core.frames import AnyFrame, Done
from cortexfs.core.talk.requests import AnyRequest, Approve, Cancel, Decision, Ping, Send


class Stream(Heard, AsyncIterator[AnyFrame]):
    """The frames that answer one request. `id` is the request's, `run` the run's once it has begun, `last`
    the id of the newest event that was read. Being cancelled does not end it: read on."""

    def __init__(self, conversation: Conversation, inbox: Inbox) -> None:
        super().__init__(inbox)
        self._conversation = conversation

    async def __anext__(self) -> AnyFrame:
        if self._inbox.is_ready:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._conversation.wait(lambda: self._inbox.is_ready)
        frame = self._inbox.take()
        if frame is None:
            raise StopAsyncIteration
        return frame


class Conversation(Asking[Stream]):
    """One connection to the object (or socket) at `path`, made by `async with`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._all: Inbox | None = None
        self._is_reading = False
        self._changed = trio.lowlevel.ParkingLot()
        self._writing = trio.Lock()
        self._unsent = bytearray()

    async def __aenter__(self) -> Conversation:
        place = await trio.to_thread.run_sync(places.socket_path, self._path)
        self._sorter = Sorter(place)
        # In a thread, as looking a name up on a mount may take as long as its daemon likes.
        self._socket = await trio.to_thread.run_sync(blocking.connected, place)
        self._socket.setblocking(False)
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def cancel(self, id: str) -> Done:
        """End a run, by its id or that of its send; its done, which says how it ended in fact."""
        async for frame in self._ask(Cancel(id=id)):
            if isinstance(frame, Done):
                return frame
        raise Failed("ECANCELED", "this conversation was closed")

    async def approve(
        self, run: str, call: str, decision: Decision, input: dict[str, Any] | None = None
    ) -> None:
        """Decide a call for which an approval frame asked, or allow it once with another `input`; Failed if
        it cannot be decided."""
        approve = Approve(run=run, call=call, decision=decision, input=input, id=new_id())
        ping = Ping(id=new_id())
        refused, heard = self._opened(approve), self._opened(ping)
        await self.wait(lambda: refused.is_settled or heard.is_settled)
        refused.take()
        heard.take()

    async def ping(self) -> float:
        """How many seconds an answer takes."""
        before = trio.current_time()
        async for _ in self._ask(Ping(id=new_id())):
            pass
        return trio.current_time() - before

    async def request(self, request: AnyRequest) -> None:
        """Write a request and wait for nothing; `frames` gives what comes, from the first of these on."""
        line = self._sorter.encode(request)
        self.frames()
        if isinstance(request, Send):
            self._sorter.note(request)
        self._say(line)
        await self._flush()

    def frames(self) -> Stream:
        """Everything that comes, in order, whatever asked for it."""
        self._all = self._all or self._sorter.open_all()
        return Stream(self, self._all)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Leave. Runs of private and shared sessions go on without us."""
        if self._socket.fileno() >= 0:
            self._sorter.close()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._changed.unpark_all()

    async def wait(self, is_ready: Callable[[], bool]) -> None:
        """Read, or let another task read, until then."""
        await self._flush()
        await self._read_until(is_ready)

    def _ask(self, request: AnyRequest) -> Stream:
        return Stream(self, self._opened(request))

    def _opened(self, request: AnyRequest) -> Inbox:
        """Say it, and keep what answers it."""
        line = self._sorter.encode(request)
        inbox = self._sorter.open(request)
        self._say(line)
        return inbox

    def _say(self, line: bytes) -> None:
        """Write it as far as that goes without waiting; whoever waits next writes the rest."""
        self._unsent += line
        if not self._writing.locked():
            with contextlib.suppress(OSError):  # a full socket, or a broken one, which is told by `_flush`
                self._write_some()

    async def _flush(self) -> None:
        if not self._unsent:
            return
        async with self._writing:
            while self._unsent:
                try:
                    self._write_some()
                except BlockingIOError:
                    await self._make_room()
                except OSError:
                    await self._read_until(lambda: self._sorter.fault is not None)
                    self._sorter.check()

    def _write_some(self) -> None:
        sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
        del self._unsent[:sent]

    async def _make_room(self) -> None:
        """Wait until more can be written, and read what comes meanwhile."""
        failures: list[Failed] = []
        async with trio.open_nursery() as nursery:

            async def first(wait: Callable[[], Awaitable[None]]) -> None:
                try:
                    await wait()
                except Failed as failed:
                    failures.append(failed)
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, lambda: self._read_until(lambda: self._sorter.fault is not None))
            nursery.start_soon(first, self._writable)
        if failures:
            raise failures[0]

    async def _writable(self) -> None:
        with contextlib.suppress(OSError, trio.ClosedResourceError):  # which the next write tells
            await trio.lowlevel.wait_writable(self._socket)

    async def _read_until(self, is_ready: Callable[[], bool]) -> None:
        while not is_ready():
            if self._is_reading:
                await self._changed.park()
            else:
                await self._read()

    async def _read(self) -> None:
        self._sorter.check_room()
        self._is_reading = True
        try:
            data = await self._received()
        finally:
            self._is_reading = False
            self._changed.unpark_all()
        self._sorter.receive(data)

    async def _received(self) -> bytes:
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(blocking.READ_BYTES)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return b""  # reset by the other side, or closed by ours: the end in any case
