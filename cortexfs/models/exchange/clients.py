"""Connections to providers, and the idle connections that are kept for the next request.

    async with clients.stream(endpoint, source, body) as response:
        while data := await response.receive(): ...

An answer is read as bytes. A vendor's client library could do that, too. But its import takes 0.4 s and its
request 4 ms, and its reader cannot tell a stream that broke off from one that ended well.

Rules: no request is retried or redirected here. Of the environment only the proxy variables change where a
request goes. A response that is no stream raises a ProviderFailure, and a failed connection raises a Lost.
Neither holds a key.
This file must never know models or frames.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.models.exchange import failures
from cortexfs.models.exchange.endpoint import ANTHROPIC, Endpoint, Lost, authorisation
from cortexfs.version import VERSION

if TYPE_CHECKING:
    from cortexfs.models.exchange.http1 import HttpConnection, ServerAddress
    from cortexfs.models.exchange.sources import ModelSource

KEPT = 20  # idle connections of a server
KEPT_SECONDS = 60.0
ERROR_SECONDS = 10.0  # to read the body of an error
EVENTS = "text/event-stream"
_CHAT = "/chat/completions"
_TARGETS = {"openai.responses": "/responses", ANTHROPIC: "/v1/messages"}


# Connects to the address of an endpoint within some seconds. Raises Lost.
Connect: TypeAlias = Callable[["ServerAddress", Endpoint, float], Awaitable["HttpConnection"]]


class Clients:
    """The idle connections of one daemon, by their address. `connect` makes a new connection."""

    def __init__(self, connect: Connect | None = None) -> None:
        self._connect = connect or _connected
        self._idle: dict[ServerAddress, list[tuple[HttpConnection, float]]] = {}  # since when each is idle

    @asynccontextmanager
    async def stream(
        self, endpoint: Endpoint, source: ModelSource, body: Mapping[str, Any]
    ) -> AsyncIterator[HttpConnection]:
        to, idle, is_kept = _address(endpoint), self._idle, False
        data = msgspec.json.encode({**body, "stream": True})
        headers = _headers(endpoint, source.format, source.headers) | {"content-length": str(len(data))}
        response = await self._connection(to, endpoint, source.connect)
        try:
            await response.begin("POST", _target(endpoint, source.format), headers, data)
            status, kind = response.status, response.headers.get("content-type", "")
            if status // 100 != 2 or not kind.startswith(EVENTS):
                answer = await response.body(failures.MAX_BODY, ERROR_SECONDS), endpoint.key
                if status < 300:
                    raise failures.no_stream(source.name, kind, *answer)
                raise failures.of_status(source.name, status, response.headers, *answer, time.time())
            if response.headers.get("content-encoding", "identity") != "identity":
                raise Fault("EREMOTEIO", "its answer is compressed, although the request forbids that")
            yield response
            is_kept = endpoint.keeps_connections and idle is self._idle and response.is_over()
        finally:
            if is_kept:
                self._keep(to, response)
            else:
                response.close()

    async def _connection(self, to: ServerAddress, endpoint: Endpoint, seconds: float) -> HttpConnection:
        while entries := self._idle.get(to):
            connection, since = entries.pop()
            if time.monotonic() - since < KEPT_SECONDS and connection.again():
                return connection
            connection.close()
        return await self._connect(to, endpoint, seconds)

    def _keep(self, to: ServerAddress, response: HttpConnection) -> None:
        entries = self._idle.setdefault(to, [])
        entries.append((response, time.monotonic()))
        if len(entries) > KEPT:
            entries.pop(0)[0].close()

    def forget(self) -> None:
        """Close all idle connections, as addresses and keys may have changed."""
        idle, self._idle = self._idle, {}
        for entries in idle.values():
            for connection, _ in entries:
                connection.close()


async def get(endpoint: Endpoint, target: str) -> bytes:
    """Returns the body of a server's answer at `target`, or the part of it that arrives."""
    with closing(await _connected(_address(endpoint), endpoint, math.inf)) as response:
        await response.begin("GET", target, _headers(endpoint, "", {}))
        return await response.body(failures.MAX_BODY, math.inf)


def _address(endpoint: Endpoint) -> ServerAddress:
    from cortexfs.models.exchange.http1 import ServerAddress  # imports that many daemons never need

    return ServerAddress.of(urlsplit(endpoint.base_url))


async def _connected(to: ServerAddress, endpoint: Endpoint, seconds: float) -> HttpConnection:
    from cortexfs.models.exchange.http1 import connected

    connection = await connected(to, seconds)
    if not endpoint.is_there():
        connection.close()
        raise Lost("no connection", connected=False)
    return connection


def _target(endpoint: Endpoint, format_: str) -> str:
    parts = urlsplit(endpoint.base_url)
    path = parts.path.rstrip("/")
    if format_ == ANTHROPIC:
        path = path.removesuffix("/v1")
    return path + _TARGETS.get(format_, _CHAT) + (f"?{parts.query}" if parts.query else "")


def _headers(endpoint: Endpoint, format_: str, replacing: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of a request. The headers of a provider's file replace ours."""
    headers = {
        "host": urlsplit(endpoint.base_url).netloc.rpartition("@")[2],
        "user-agent": f"cortexfs/{VERSION}",
        "accept": f"{EVENTS}, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    if not endpoint.keeps_connections:
        headers["connection"] = "close"
    own = authorisation(endpoint.key, format_) | dict(replacing)
    return headers | {name.lower(): value for name, value in own.items()}
