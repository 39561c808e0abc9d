"""Requests to a server of ours on 127.0.0.1, over Trio and h11: what models/exchange/clients.py is for
providers.

    async with loopback.request(served, "GET", "/slots") as reply:
        reply.status, await reply.body()

Rules: only the engine is told anything: the port of one that has ended may be a stranger's by now, so the
engine is looked at when the connection is there. A reply is read as far as it has come, never awaited whole,
unless `body` says so, which is bounded. Leaving closes the connection, by which the server knows that nobody
waits any more. What fails is a Lost or a Rejected, as with providers. Imported only with the extra [local].
This file must never know what is asked.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import msgspec
import trio

from cortexfs.models.exchange.clients import Clients, ConnectionSettings, Lost, RejectedResponse, Response
from cortexfs.models.exchange.endpoint import Endpoint
from cortexfs.models.exchange.failures import MAX_BODY
from cortexfs.models.local.engine import EngineAddress

CHUNK = 64 << 10


class Reply(Response):
    """The answer to a request, from its first line on."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self.status = 0

    async def begin(self, key: str, method: str, target: str, body: bytes) -> None:
        """Send the request; returns when the reply has begun."""
        headers = [
            ("Host", "127.0.0.1"),
            ("Authorization", f"Bearer {key}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        request = h11.Request(method=method, target=target, headers=headers)
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))
        begun = await self._next()
        if not isinstance(begun, h11.Response):
            raise Lost("it broke off", connected=True)
        self.status = begun.status_code

    async def receive(self) -> bytes:
        """Its next bytes, as they come; none at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def body(self) -> bytes:
        """All of it, up to MAX_BODY."""
        whole = b""
        while len(whole) < MAX_BODY and (data := await self.receive()):
            whole += data
        return whole[:MAX_BODY]

    async def _next(self) -> object:
        try:
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA and not isinstance(event, h11.InformationalResponse):
                    return event
                self._http.receive_data(await self._stream.receive_some(CHUNK))
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            raise Lost("it broke off", connected=True) from None


async def _connect(plain: socket.socket, port: int) -> None:
    """As Trio does it, without a turn of the loop: on the loopback a connection is nearly always there at
    once, which the second call says."""
    while (problem := plain.connect_ex(("127.0.0.1", port))) not in (0, errno.EISCONN):
        if problem == errno.EALREADY:
            await trio.lowlevel.wait_writable(plain)
        elif problem != errno.EINPROGRESS:
            raise OSError(problem, os.strerror(problem))


@asynccontextmanager
async def request(served: EngineAddress, method: str, target: str, body: bytes = b"") -> AsyncIterator[Reply]:
    plain = socket.socket()
    with trio.socket.from_stdlib_socket(plain) as connection:
        try:
            await _connect(plain, served.port)
            if not served.is_alive():
                raise Lost("no connection", connected=False)
            reply = Reply(trio.SocketStream(connection))
            await reply.begin(served.key, method, target, body)
        except (OSError, trio.BrokenResourceError):
            raise Lost("no connection", connected=False) from None
        yield reply


class Loopback(Clients):
    """Streams of an engine, for whoever else would open them with an SDK."""

    @asynccontextmanager
    async def stream(
        self, endpoint: Endpoint, settings: ConnectionSettings, body: dict[str, Any]
    ) -> AsyncIterator[Response]:
        assert isinstance(endpoint, EngineAddress)
        data = msgspec.json.encode(body | {"stream": True})
        async with request(endpoint, "POST", "/v1/chat/completions", data) as reply:
            if reply.status != 200:
                raise RejectedResponse(reply.status, {}, await reply.body())
            yield reply
