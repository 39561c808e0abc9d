"""Standard input and output of `ctx mcp serve` for the SDK's transport, in the event loop itself.

Rules: nothing is handed to a thread. The SDK would do so three times in each call, and each time costs more
than the call. A client that does not read holds up its own answers alone.
This file must never know what the lines say.
"""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator

import anyio

from cortexfs.mcp.greeting import Greeted

READ_BYTES = 1 << 16


class StdioInput:
    """The lines of standard input, with the first one, which `early` has read."""

    def __init__(self, greeted: Greeted) -> None:
        self._first = greeted.line
        self._descriptor = _moved(0, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    async def __aiter__(self) -> AsyncIterator[str]:
        pieces: list[bytes] = []
        while data := await self._read():
            *lines, rest = data.split(b"\n")
            for line in lines:
                yield b"".join([*pieces, line]).decode(errors="replace")
                pieces.clear()
            pieces.append(rest)
        if last := b"".join(pieces):
            yield last.decode(errors="replace")

    async def _read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            await anyio.wait_readable(self._descriptor)
        except PermissionError:  # a plain file, which is always readable
            await anyio.lowlevel.checkpoint()
        return os.read(self._descriptor, READ_BYTES)


class StdioOutput:
    """Standard output, without the SDK's answer to a greeting that `early` has answered."""

    def __init__(self, greeted: Greeted) -> None:
        self._greeted = greeted
        self._descriptor = _moved(1, os.dup(2))
        self._room = select.poll()
        self._room.register(self._descriptor, select.POLLOUT)

    async def write(self, text: str) -> None:
        if self._greeted.is_answer(text):
            self._greeted = Greeted(b"")
            return
        data = memoryview(text.encode())
        while data:
            if not self._room.poll(0):
                await anyio.wait_writable(self._descriptor)
            # A writable pipe has room for this many bytes; a larger write might block.
            data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]

    async def flush(self) -> None:
        """Do nothing: `write` keeps nothing back."""


def _moved(number: int, instead: int) -> int:
    """Returns a copy of a standard stream, which `instead` replaces. So a stray print never reaches the
    client."""
    moved = os.dup(number)
    os.dup2(instead, number)
    os.close(instead)
    return moved
