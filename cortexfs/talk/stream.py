"""One client's stream, both ways, at a bounded cost whatever the client does (abi.md 5).

Rules: a line that is not whole counts as its user's memory, and is dropped if he has none left. A long line
is parsed in a thread, one of a user's at a time, as a MiB of brackets takes a fifth of a second. Between
short lines, other tasks have their turn. Frames for a client are sent at once as far as he reads, and the
rest at his pace; a task waits for this rest before it sends more. Frames for a client that has closed its
receiving side are dropped.
This file must never know what a request does, or what a frame means.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Awaitable, Callable

import trio

from cortexfs.core import frames, lines
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import AnyRequest, Refusal
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.guests import SMALL, Guests

RECEIVE = 16 << 10  # bytes at a turn, which is a thousand of the shortest requests
LONG = 16 << 10  # bytes of a line that is parsed at once: that takes 3 ms at most
PACE = 64  # short lines in a row, before others have their turn
ANSWERS = 64 << 10  # bytes of answers that a client may leave unread before its requests are no longer read

# Raises a Fault with the reason if a client may not work in this directory.
CheckCwd = Callable[[str], Awaitable[None]]


class Hearing:
    """The lines that one client sends."""

    def __init__(self, stream: socket.socket, uid: int, guests: Guests) -> None:
        self._stream = stream
        self._uid = uid
        self._guests = guests
        self.lines = lines.LineSplitter()
        self._let_go: Callable[[], None] | None = None  # releases the memory of a long line that is not whole
        self._heard = 0

    async def received(self) -> bytes:
        """Returns the next bytes, or no bytes at the client's end."""
        while True:
            await trio.lowlevel.wait_readable(self._stream)
            with contextlib.suppress(BlockingIOError):
                data = safe_sockets.receive(self._stream, RECEIVE)
                if trace.wire:
                    trace.wire(f"a client of uid {self._uid}", "heard", data)
                return data

    async def gone(self) -> None:
        """Wait until the other end is closed, and not only for writing (epoll_ctl(2): HUP is always told)."""
        with select.epoll() as look:
            look.register(self._stream, 0)
            await trio.lowlevel.wait_readable(look.fileno())

    def keep(self) -> Refusal | None:
        """Account for the rest after whole lines were taken. Returns a refusal if there is no room for it."""
        if self.lines.held <= SMALL:
            self.close()
        elif self._let_go is None:
            try:
                self._let_go = self._guests.hold(self._uid, MAX_LINE)
            except Fault as fault:
                self.lines.drop()
                return requests.refusal(fault)
        return None

    async def understood(self, line: bytes | None) -> AnyRequest | Refusal:
        self._heard += 1
        if line is not None and len(line) > LONG:
            async with self._guests.turn(self._uid):
                heard = await trio.to_thread.run_sync(requests.decode, line)
            self.close()  # the request itself is accounted for from here on
            return heard
        if self._heard % PACE == 0:
            await trio.lowlevel.checkpoint()
        return requests.decode(line)

    def close(self) -> None:
        if self._let_go:
            self._let_go()
            self._let_go = None


class Saying:
    """The frames for one client; `waits` is called when some have to wait for him."""

    def __init__(self, stream: socket.socket, waits: Callable[[], None]) -> None:
        self._stream = stream
        self._waits = waits
        self._sent = trio.lowlevel.ParkingLot()
        self.unsent = bytearray()
        self.hears_nothing = False

    def say(self, frame: frames.Frame) -> None:
        self.pass_on(lines.encode(frame))

    def pass_on(self, data: bytes) -> None:
        """Send data now, or as soon as the data that waits already has been sent."""
        if self.hears_nothing:
            return
        if trace.wire:
            trace.wire("a client", "said", data)
        if not self.unsent:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                data = data[self._stream.send(data) :]
        if data:
            self.unsent += data
            self._waits()

    async def answers_gone(self) -> None:
        while len(self.unsent) > ANSWERS:
            await self._sent.park()

    async def drain(self) -> None:
        while self.unsent:
            try:
                del self.unsent[: self._stream.send(self.unsent)]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._stream)
        self._sent.unpark_all()

    def give_up(self) -> None:
        """Drop all frames, as the client has closed its side; its earlier requests count. `waits` goes, too:
        a connection and its sending end must be no ring, which would stay in memory until collected."""
        self.hears_nothing = True
        self._waits = lambda: None
        self.unsent.clear()
        self._sent.unpark_all()
