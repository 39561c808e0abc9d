"""The MCP server on HTTP, for clients that know its secret.

Rules: every request needs the bearer token. The socket is bound before its address is printed, so the printed
address is the one that answers. Strangers can connect: their heads are bounded, which they are only by h11,
and the oldest connection without the token makes room for the next one.
This file must never know tools.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cortexfs.core import networks
from cortexfs.core.errors import Fault, code_of
from cortexfs.mcp.events import EventSessions

PATH = "/mcp"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
GRACE_SECONDS = 1  # for answers under way at the end; a stream has no end of its own
MAX_SESSIONS = 100  # clients at a time, each with a session in memory
MAX_STRANGERS = 100  # connections that have not shown the token


class Bearer:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._strangers: dict[tuple[str, int] | None, asyncio.Transport] = {}  # oldest first

    def welcome(self, client: tuple[str, int] | None, transport: asyncio.Transport) -> None:
        self._strangers.pop(client, None)
        self._strangers[client] = transport
        if len(self._strangers) > MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Blanks around a value do not count (RFC 9110 5.5), but the SDK would compare them.
            scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
            values = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(values) != 1 or not hmac.compare_digest(values[0], self._expected):
                refusal = PlainTextResponse(
                    "send the bearer token that ctx mcp serve printed, or that its user chose\n",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                return await refusal(scope, receive, send)
            self._strangers.pop(scope["client"], None)
        await self._app(scope, receive, send)


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at this address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        why = str(problem.strerror).partition(" (while attempting")[0]
        raise Fault(code_of(problem.errno), f"nothing can listen at {host} port {port}: {why}") from None


async def over_http(
    server: Server[Any], listening: socket.socket, token: str, ready: Callable[[], None]
) -> None:
    """Serve until a signal ends it."""
    host = listening.getsockname()[0]
    # Other host names are refused: a web page could point its own name here (DNS rebinding).
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=networks.is_loopback(host),
        allowed_hosts=[f"{name}:*" for name in LOOPBACK],
        allowed_origins=[f"http://{name}:*" for name in LOOPBACK],
    )
    sessions = EventSessions(server, security_settings=security, max_sessions=MAX_SESSIONS)
    route = Route(PATH, endpoint=StreamableHTTPASGIApp(sessions))
    app = Starlette(routes=[route], lifespan=lambda _: sessions.run())
    bearer = Bearer(app, token)

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            bearer.welcome(self.client, transport)

    config = uvicorn.Config(
        bearer,
        http=Connection,
        ws="none",
        log_level="error",  # strangers cause warnings
        access_log=False,
        proxy_headers=False,  # a header would decide which client it is
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    ready()
    await uvicorn.Server(config).serve(sockets=[listening])
