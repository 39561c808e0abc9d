"""The words for one client: sent at once as far as he reads, and the rest at his own pace (abi.md 5).

Rules: whoever is about to send him more waits until what is there has gone. To one who hears nothing all is
said that there is to say, and nothing is kept.
This file must never know what a frame means.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import trio

from cortexfs.core import frames, lines
from cortexfs.peers import trace

ANSWERS = 64 << 10  # bytes of answers that a client may leave unread before it is no longer heard


class Saying:
    """One client's end of it; `waits` is called when something has to wait for him."""

    def __init__(self, stream: socket.socket, waits: Callable[[], None]) -> None:
        self._stream = stream
        self._waits = waits
        self._sent = trio.lowlevel.ParkingLot()
        self.left = bytearray()
        self.hears_nothing = False

    def say(self, frame: frames.Frame) -> None:
        self.pass_on(lines.encode(frame))

    def pass_on(self, data: bytes) -> None:
        """Send it now, or as soon as what waits already has been sent."""
        if self.hears_nothing:
            return
        if trace.wire:
            trace.wire("a client", "said", data)
        if not self.left:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                data = data[self._stream.send(data) :]
        if data:
            self.left += data
            self._waits()

    async def answers_gone(self) -> None:
        while len(self.left) > ANSWERS:
            await self._sent.park()

    async def drain(self) -> None:
        while self.left:
            try:
                del self.left[: self._stream.send(self.left)]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._stream)
        self._sent.unpark_all()

    def give_up(self) -> None:
        """He has closed his side; what he said before counts nevertheless."""
        self.hears_nothing = True
        self.left.clear()
        self._sent.unpark_all()
