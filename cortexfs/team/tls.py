"""A TCP connection with TLS, for one task that reads. Data is sent in the caller's turn of the loop.

    stream = await TlsStream.open(host, port, context)
    count = stream.send(data)           what the kernel takes now, perhaps nothing
    await stream.writable()
    data = await stream.receive()       b"" at the end

A call on another machine writes and reads six times. Trio's stream takes several turns of the loop each time.

This file must never know the meaning of the data.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

import trio

T = TypeVar("T")

RECEIVE = 256 << 10
_RECORD = 16 << 10  # bytes, the most in one record of TLS


class TlsStream:
    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._socket = sock
        self._is_drained = False  # all arrived data was read

    @classmethod
    async def open(cls, host: str, port: int, context: ssl.SSLContext) -> Self:
        """Connect, and shake hands. Raises OSError, or ssl.SSLError for a bad certificate."""
        plain = await trio.open_tcp_stream(host, port)
        raw = socket.socket(fileno=plain.socket.detach())
        raw.setblocking(False)
        sock = context.wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
        stream = cls(sock)
        try:
            await stream._until(sock.do_handshake)
        except BaseException:
            stream.close()
            raise
        return stream

    @property
    def certificate(self) -> bytes:
        return self._socket.getpeercert(binary_form=True) or b""

    def send(self, data: bytearray) -> int:
        """Send as much as goes without waiting. Returns how much that is; call it again with the rest."""
        sent = 0
        with memoryview(data) as view:
            try:
                while sent < len(view):
                    sent += self._socket.send(view[sent : sent + _RECORD])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                pass
        return sent

    async def send_all(self, data: bytes) -> None:
        rest = bytearray(data)
        while rest:
            del rest[: self.send(rest)]
            if rest:
                await self.writable()

    async def writable(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    async def receive(self) -> bytes:
        """Returns all data that has come, up to RECEIVE bytes and a record."""
        if self._is_drained:
            await trio.lowlevel.wait_readable(self._socket)
            self._is_drained = False
        data = await self._until(self._record)
        size, pieces = len(data), [data]
        while data and size < RECEIVE:
            try:
                data = self._record()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._is_drained = True
                break
            size += len(data)
            pieces.append(data)
        if size >= RECEIVE:  # a flood must not keep the others waiting
            await trio.lowlevel.cancel_shielded_checkpoint()
        return b"".join(pieces)

    def _record(self) -> bytes:
        return self._socket.recv(_RECORD)

    async def _until(self, do: Callable[[], T]) -> T:
        """Call `do` when it works without waiting."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            wait: Callable[[ssl.SSLSocket], Awaitable[None]]
            try:
                return do()
            except ssl.SSLWantReadError:
                wait = trio.lowlevel.wait_readable
            except ssl.SSLWantWriteError:
                wait = trio.lowlevel.wait_writable
            await wait(self._socket)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
