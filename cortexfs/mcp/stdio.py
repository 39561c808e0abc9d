"""Standard input and output of `ctx mcp serve`, as the SDK's transport takes them, in the event loop itself.

Rules: what can be read and written without waiting is, and nothing is handed to a thread, as the SDK would
with each line: three times in a call, each of which costs more than the call. Whoever does not read keeps
nobody but the answers to himself waiting.
This file must never know what is said.
"""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator

import anyio

from cortexfs.mcp.greeting import Greeted

READ_BYTES = 1 << 16


class StdioInput:
    """The lines of standard input, from the first one on."""

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
        except PermissionError:  # a plain file, for which nobody has to wait
            await anyio.lowlevel.checkpoint()
        return os.read(self._descriptor, READ_BYTES)


class StdioOutput:
    """Standard output, without the second answer to the greeting."""

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
            # A pipe that can be written has room for so many bytes; more might wait.
            data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]

    async def flush(self) -> None:
        """Nothing is kept back."""


def _moved(number: int, instead: int) -> int:
    """A descriptor of its own for a standard stream, in whose place another stands: nothing that a program
    prints by mistake is to be heard by the client."""
    moved = os.dup(number)
    os.dup2(instead, number)
    os.close(instead)
    return moved
