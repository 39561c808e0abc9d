"""HTTP to an MCP server, with a bound on each answer, and on the streams that are opened again.

This file must never know what is said.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp.limits import Judge, McpViolation
from cortexfs.net import bounded

CONNECT_SECONDS = 30.0  # answers have the time of their call
# A machine that was unplugged ends no connection: without an answer of its kernel, calls fail after a minute.
ALIVE: tuple[tuple[int, int, int], ...] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),  # seconds without data, until it is asked
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),  # milliseconds
)

REFUSALS = (401, 403)
MAX_CHALLENGE = 2000


@asynccontextmanager
async def transport(target: McpTarget, judge: Judge, bearer: Callable[[], str]) -> AsyncIterator[Any]:
    """Yields the SDK's transport; `judge` checks the messages. `bearer` returns the current token, or ""."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
    client = httpx2.AsyncClient(
        headers=target.headers, timeout=timeout, transport=BoundedTransport(judge, bearer), trust_env=False
    )
    async with client, streamable_http_client(target.url, http_client=client) as (incoming, outgoing):
        out, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, requests = anyio.create_memory_object_stream[SessionMessage](0)

        async def hear() -> None:
            with out, suppress(anyio.BrokenResourceError):
                try:
                    async for each in incoming:
                        if isinstance(each, Exception):
                            await out.send(each)
                        elif judge.is_wanted(each.message):
                            refusal = judge.refusal(each.message)
                            await (outgoing.send(SessionMessage(refusal)) if refusal else out.send(each))
                except McpViolation as broken:
                    judge.why = str(broken)

        async def say() -> None:
            async for each in requests:
                judge.sent(each.message)
                await outgoing.send(each)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            tasks.start_soon(say)
            with read, write, requests:
                yield read, write
            tasks.cancel_scope.cancel()


class BoundedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, judge: Judge, bearer: Callable[[], str]) -> None:
        super().__init__(socket_options=ALIVE)
        self._judge = judge
        self._bearer = bearer
        self._turns = bounded.StreamTurns()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._turns.wait(request)
        await bounded.ask_plain(request)
        if token := self._bearer():
            request.headers["Authorization"] = f"Bearer {token}"
        response = await super().handle_async_request(request)
        self._judge.refused = response.status_code if response.status_code in REFUSALS else 0
        self._judge.challenge = response.headers.get("www-authenticate", "")[:MAX_CHALLENGE]
        await bounded.count(response)
        return response
