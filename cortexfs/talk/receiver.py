"""The words of one client, as requests, at a price that is bounded whatever he says (abi.md 5).

Rules: a line that is not whole counts as memory of its user's, and is dropped where he has none left. A
long one is understood in a thread, one of a user's at a time, as a MiB of brackets takes a fifth of a second.
Between short ones others have their turn.
This file must never know what a request does.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.lines import LineSplitter
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import AnyRequest, Input, Refusal
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.quotas import SMALL, Guests

RECEIVE = 16 << 10  # bytes at a turn, which is a thousand of the shortest requests
LONG = 16 << 10  # bytes of a line that is understood at once: in 3 ms, whatever it is
PACE = 64  # short lines in a row, before others have their turn
# Bytes that a value takes in memory, by what it begins with or is behind: measured with CPython 3.11.
WEIGHTS = {b"{": 240, b"[": 96, b",": 72}


class Hearing:
    """One client's lines."""

    def __init__(self, stream: socket.socket, uid: int, guests: Guests) -> None:
        self._stream = stream
        self._uid = uid
        self._guests = guests
        self._lines = LineSplitter()
        self._let_go: Callable[[], None] | None = None  # of a long line that is not whole
        self._heard = 0

    async def received(self) -> bytes:
        """Returns the next bytes; nothing at his end."""
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

    def lines(self, data: bytes) -> list[bytes | None]:
        """The lines that `data` completes; None stands for one that was too long."""
        return self._lines.feed(data)

    def keep(self) -> Refusal | None:
        """When lines have been taken: account for the rest; the answer where there is no room for it."""
        if self._lines.held <= SMALL:
            self.close()
        elif self._let_go is None:
            try:
                self._let_go = self._guests.hold(self._uid, MAX_LINE)
            except Fault as fault:
                self._lines.drop()
                return requests.refusal(fault)
        return None

    async def understood(self, line: bytes | None) -> AnyRequest | Refusal:
        self._heard += 1
        if line is not None and len(line) > LONG:
            async with self._guests.turn(self._uid):
                heard = await trio.to_thread.run_sync(requests.decode, line)
            self.close()  # what it asks for is accounted for by what it is
            return heard
        if self._heard % PACE == 0:
            await trio.lowlevel.checkpoint()
        return requests.decode(line)

    def close(self) -> None:
        if self._let_go:
            self._let_go()
            self._let_go = None


def weight(value: Input) -> int:
    """About how many bytes of memory an input takes: a MiB of brackets is 20 of them."""
    data = msgspec.json.encode(value)
    if isinstance(value, str):
        return len(data)
    return len(data) + sum(data.count(mark) * each for mark, each in WEIGHTS.items())
