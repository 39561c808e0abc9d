"""The tools of a mount as an MCP server.

Main path: `Serving.server` is the SDK's server. It answers from a `McpOffer` and from runs of tools, and
tells its clients when the mount changes. `over_stdio` serves one client; http.py many.

Rules: a tool runs as if another program of this user had started it, so the mount decides about it as always.
Its input goes by standard input, as other users can see arguments. The failure of a run is a result that a
model can read; only an unknown name is an error of the protocol. The end of a call's task kills its run, so a
cancellation needs no message.
This file must never know transports, but for stdio, which is one call of the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from cortexfs.client.results import Failed
from cortexfs.mcp.code import TOOLS, CodeTools
from cortexfs.mcp.greeting import Greeted
from cortexfs.mcp.offer import McpOffer
from cortexfs.mcp.results import McpResult
from cortexfs.mcp.running import run
from cortexfs.mcp.shelf import McpShelf
from cortexfs.mcp.stdio import StdioInput, StdioOutput
from cortexfs.version import VERSION

LOOK_SECONDS = 2.0  # between looks at the mount, as the daemon announces no changes
PATIENCE = 5.0  # for one look; a mount that hangs must not keep a client waiting
TELL_SECONDS = 1.0
MAX_SESSIONS = 1000  # that are told of changes
MAX_URIS = 100  # of one client that listens

Context = ServerRequestContext[Any, Any]


class _Server(Server[Any]):
    def create_initialization_options(self, *_: Any, **__: Any) -> InitializationOptions:
        """Declare on every transport that tools may change."""
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


class Serving:
    """One server for all its clients."""

    def __init__(self, offer: McpOffer, shelf: McpShelf, code: CodeTools | None = None) -> None:
        """With `code`, its tools replace those of the offer."""
        self._offer = offer
        self._shelf = shelf
        self._code = code
        self._looking = anyio.CapacityLimiter(1)  # a mount that hangs holds up one thread alone
        self._bus = InMemorySubscriptionBus()
        self._sessions: list[ServerSession] = []
        self.server: Server[Any] = _Server(
            "cortexfs",
            version=VERSION,
            title="CortexFS",
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listened,
        )
        self._listen = ListenHandler(self._bus)
        shelf.add_to(self.server)
        self.server.add_notification_handler("notifications/initialized", NotificationParams, self._greeted)

    @asynccontextmanager
    async def _lifespan(self, _: Server[Any]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            yield
            tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if await self.renew():
                await self._tell()
            for watcher, uri in await self._shelf.changed():
                if not isinstance(watcher, ServerSession):
                    await self._bus.publish(ResourceUpdated(uri=uri))
                elif not await self._tell_client(partial(watcher.send_resource_updated, uri)):
                    self._shelf.forget(watcher)

    async def _tell(self) -> None:
        """Tell the clients of a change. A client that does not read is dropped."""
        await self._bus.publish(ToolsListChanged())
        for session in list(self._sessions):
            if not await self._tell_client(session.send_tool_list_changed):
                self._sessions.remove(session)

    async def _tell_client(self, tell: Callable[[], Awaitable[None]]) -> bool:
        with anyio.move_on_after(TELL_SECONDS):
            await tell()
            return True
        return False

    async def _listened(
        self, context: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        listener = object()
        try:
            for uri in (params.notifications.resource_subscriptions or [])[:MAX_URIS]:
                await self._shelf.watch(listener, uri)
            return await self._listen(context, params)
        finally:
            self._shelf.forget(listener)

    async def renew(self) -> bool:
        """Read the mount again. Returns True if clients are to be told."""
        with anyio.move_on_after(PATIENCE):
            return await to_thread.run_sync(self._offer.renew, abandon_on_cancel=True, limiter=self._looking)
        return False

    async def _greeted(self, context: Context, _: NotificationParams) -> None:
        """Remember the session for notes about changes. A session that has gone drops them."""
        self._sessions = [*self._sessions, context.session][-MAX_SESSIONS:]

    async def _list_tools(self, _: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        if self._code:
            return ListToolsResult(tools=[*TOOLS])
        cursor = params.cursor if params else None
        if cursor is None:
            await self.renew()
        tools, following = self._offer.page(cursor)
        return ListToolsResult(tools=tools, next_cursor=following)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        steps = count(1)

        async def progress(message: str) -> None:
            await context.session.report_progress(next(steps), message=message)

        if self._code:
            return await self._code.call(params.name, params.arguments or {}, progress)
        path = self._offer.path(params.name)
        if path is None:
            await self.renew()
            path = self._offer.path(params.name)
        if path is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}")
        result = McpResult()
        try:
            hear = partial(result.hear, progress=progress)
            await run(path, msgspec.json.encode(params.arguments or {}), hear)
        except Failed as failed:
            result.fail(failed)
        return self._shelf.remember(path, result.whole())


async def over_stdio(server: Server[Any], greeted: Greeted) -> None:
    """Serve the client on standard input and output until it leaves."""
    streams: list[Any] = [StdioInput(greeted), StdioOutput(greeted)]  # all that the SDK needs of a file
    async with stdio_server(*streams) as (read, write):
        await server.run(read, write, server.create_initialization_options())
