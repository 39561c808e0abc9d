"""One MCP server of the mount, served as an MCP server again: with its own names and answers, and the mount's
policy and log (`ctx mcp serve --server`).

Main path: each client has a `McpRelay`, created by its greeting and ended with its connection. `_greet`
passes on how the server describes itself; the other handlers pass on everything else.

Rules: each request is a run of an object of the mount, so the mount decides about it. A tool that this user
may not run, or that the patterns exclude, is not offered.
This file must never know what a transport is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    RequestParams,
    TextContent,
)
from mcp_types.methods import INPUT_REQUIRED_METHODS

from cortexfs.client.results import Failed
from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import CALL, GREETING, HANDSHAKE, LIST, METHODS, NAME_KEY, OBJECT, QUESTIONS
from cortexfs.mcp.greeting import BEYOND
from cortexfs.mcp.offer import McpOffer
from cortexfs.mcp.relay import Channel, McpRelay, connection
from cortexfs.mcp.rounds import RESPONSES, STATE, Rounds, Work, able
from cortexfs.version import VERSION

Context = ServerRequestContext[Any, Any]
MAX_PAGES = 100
READ = "resources/read"
_OURS = ("_meta", STATE, RESPONSES)  # parameters of a request that the server does not get


class Reexport(Server[Any]):
    def __init__(self, name: str, object: str, offer: McpOffer) -> None:
        super().__init__(name, version=VERSION, lifespan=self._while_served)
        self._object = object
        self._offer = offer
        self._alone = McpRelay(object)  # for clients that cannot be asked on their connection
        self._rounds = Rounds(object)
        self._is_held = False
        self._paths: dict[str, str] = {}  # of the tools, by the server's names
        self._tasks: anyio.abc.TaskGroup | None = None
        self.middleware.append(self._greet)
        for method in METHODS:
            self.add_request_handler(method, RequestParams, self._forward)
        self.add_request_handler(LIST, RequestParams, self._list)
        self.add_request_handler(CALL, CallToolRequestParams, self._call)

    async def _greet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Describe this server as the server of the mount describes itself to this client."""
        context, answer = ctx, await call_next(ctx)
        if context.method not in ("initialize", "server/discover"):
            return answer
        known = answer if isinstance(answer, dict) else answer.model_dump(by_alias=True) if answer else {}
        if context.method == "initialize":
            abilities = (context.params or {}).get("capabilities") or {}
            can = [each for each in QUESTIONS if abilities.get(each) is not None]
            relay = connection(context).state["relay"] = McpRelay(self._object, [HANDSHAKE, *can])
            self._hold(context, relay)
        facts = await self._ask(context, GREETING, {})
        info = facts.get("serverInfo") or (facts.get("_meta") or {}).get(SERVER_INFO_META_KEY)
        can = facts.get("capabilities", {})
        known["capabilities"] = {key: value for key, value in can.items() if key not in BEYOND}
        if context.method == "initialize" and info:
            known["serverInfo"] = info
        elif info:
            known["_meta"] = {**(known.get("_meta") or {}), SERVER_INFO_META_KEY: info}
        if facts.get("instructions"):
            known["instructions"] = facts["instructions"]
        return known

    @asynccontextmanager
    async def _while_served(self, _: Server[Any]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    def _hold(self, context: Context, relay: McpRelay) -> None:
        """Pass on the server's messages outside of calls while this client stays. The session ends with this
        run."""
        assert self._tasks is not None
        scope = anyio.CancelScope()
        if relay is not self._alone:
            connection(context).exit_stack.callback(scope.cancel)

        async def listen() -> None:
            with scope, contextlib.suppress(Failed, MCPError):  # the next request reports it
                await relay.listen(Channel(context.session, None))

        self._tasks.start_soon(listen)

    def _relay(self, context: Context) -> McpRelay:
        relay: McpRelay = connection(context).state.get("relay", self._alone)
        if relay is self._alone and not self._is_held:
            self._is_held = True
            self._hold(context, relay)
        return relay

    async def _forward(self, context: Context, _: RequestParams) -> dict[str, Any]:
        params = {key: value for key, value in (context.params or {}).items() if key not in _OURS}
        return await self._ask(context, context.method, params)

    async def _ask(self, context: Context, method: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._answer(context, lambda relay, way: relay.ask(way, method, params))
        except Failed as failed:
            code = INVALID_PARAMS if failed.code == "EINVAL" else INTERNAL_ERROR
            raise MCPError(code, f"{failed.code}: {failed.message}") from None

    async def _answer(self, context: Context, work: Work) -> dict[str, Any]:
        """Return the answer, with fields that newer clients expect and a server with a handshake omits."""
        answer = await self._ran(context, work)
        if context.protocol_version < "2026":
            return answer
        fields = {"ttlMs": 0, "cacheScope": "private"} if context.method == READ else {}
        return {"resultType": "complete", **fields, **answer}

    async def _ran(self, context: Context, work: Work) -> dict[str, Any]:
        channel = Channel(context.session, context.request_id)
        if context.method not in INPUT_REQUIRED_METHODS or not able(context):
            return await work(self._relay(context), channel)
        assert self._tasks is not None
        return await self._rounds.result(self._tasks, context, channel, work)

    async def _list(self, context: Context, params: RequestParams) -> dict[str, Any]:
        answer = await self._forward(context, params)
        await anyio.to_thread.run_sync(self._offer.renew)
        return {**answer, "tools": [tool for tool in answer["tools"] if self._is_offered(tool)]}

    def _is_offered(self, tool: dict[str, Any]) -> bool:
        """Note the object of a listed tool. Returns True if this user may run it."""
        path = self._offer.path(str(tool["_meta"].pop(NAME_KEY)))
        if not tool["_meta"]:
            del tool["_meta"]
        if path is not None:
            self._paths[tool["name"]] = path
        return path is not None

    async def _call(self, context: Context, params: CallToolRequestParams) -> dict[str, Any] | CallToolResult:
        if params.name not in self._paths:
            await self._learn(context)
        if params.name not in self._paths:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}")
        path, arguments = self._paths[params.name], params.arguments or {}
        try:
            return await self._answer(context, lambda relay, way: relay.call(way, path, arguments))
        except Failed as failed:
            why = TextContent(text=f"{failed.code}: {failed.message}")
            return CallToolResult(content=[why], is_error=True)

    async def _learn(self, context: Context) -> None:
        """Read all pages of the list of tools."""
        cursor = None
        for _ in range(MAX_PAGES):
            params: dict[str, Any] = {"cursor": cursor} if cursor else {}
            page = await self._list(replace(context, method=LIST, params=params), RequestParams())
            if not (cursor := page.get("nextCursor")):
                break


def reexported(root: str, name: str, offer: McpOffer) -> Reexport:
    """Returns the server that was added under this name. Raises ENOENT if there is none."""
    object = f"{root}/tool/{name}.{OBJECT}"
    if not os.path.exists(object):
        raise Fault("ENOENT", f"there is no MCP server {name!r} in {root}; see: ctx mcp list")
    return Reexport(name, object, offer)
