"""Reading and writing a socket with an untrusted peer, as a task of the loop.

This file must never know the protocol of a socket.
"""

from __future__ import annotations

import socket

import trio

from cortexfs.peers import safe_sockets
from cortexfs.peers.prompt import in_task, is_readable

RECEIVE = 256 << 10


async def send(stream: socket.socket, data: bytes) -> None:
    """Send all of the data. After an interrupted send, a stream can only be closed."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[stream.send(rest) :]
        except BlockingIOError:
            await in_task()
            await trio.lowlevel.wait_writable(stream)


async def receive(stream: socket.socket) -> bytes:
    """Returns the bytes that have come, or b"" at the end. It waits only when there are none, so a task that
    repeats it has to checkpoint itself."""
    while True:
        try:
            return safe_sockets.receive(stream, RECEIVE)
        except BlockingIOError:
            if not await is_readable(stream):
                await in_task()
                await trio.lowlevel.wait_readable(stream)
