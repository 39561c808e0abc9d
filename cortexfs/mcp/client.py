"""The use of an MCP server by a command, whether the server was added to the mount or not.

Main path: `used` connects to a server and passes the SDK's client to `use`. Questions of the server go to
`asked`, its messages to `told`.

Rules: a program is started as the user of the command, in that user's environment, and its standard error is
the command's. The client declares that it answers forms and nothing else.
This file must never know what a terminal is.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, TypeVar

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    LoggingMessageNotificationParams,
)
from pydantic import ValidationError

from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import of_output
from cortexfs.core.safe_text import misfits
from cortexfs.net.bounded import bound

T = TypeVar("T")
Asked = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]  # None declines a form


class McpPlace(NamedTuple):
    """A server: a program to start, or the address of a running one."""

    command: tuple[str, ...] = ()
    url: str = ""
    headers: Mapping[str, str] = {}
    added: str = ""  # its name in the mount

    def __str__(self) -> str:
        return self.added or self.url or shlex.join(self.command)


def used(
    place: McpPlace, use: Callable[[Client], Awaitable[T]], ask: Asked, tell: Callable[[str], None]
) -> T:
    """Returns the result of `use`. Any failure of the server is a Fault."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    answers: list[int] = []  # statuses, which the SDK's errors lack
    try:
        return anyio.run(_used, place, use, ask, tell, answers)
    except (BaseExceptionGroup, MCPError, OSError, httpx2.HTTPError, RuntimeError, ValidationError) as error:
        raise _fault(place, error, answers) from None


async def _used(
    place: McpPlace,
    use: Callable[[Client], Awaitable[T]],
    ask: Asked,
    tell: Callable[[str], None],
    answers: list[int],
) -> T:
    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        if not isinstance(params, ElicitRequestFormParams):
            tell(f"the server asks you to open {params.url}: {params.message}")
            return ElicitResult(action="cancel")
        content = await anyio.to_thread.run_sync(ask, params.message, dict(params.requested_schema))
        return (
            ElicitResult(action="decline")
            if content is None
            else ElicitResult(action="accept", content=content)
        )

    async def log(params: LoggingMessageNotificationParams) -> None:
        tell(f"{params.level}: {params.data}")

    async def answered(response: httpx2.Response) -> None:
        answers.append(response.status_code)

    async with AsyncExitStack() as stack:
        if place.url:
            http = httpx2.AsyncClient(
                headers=place.headers,
                timeout=httpx2.Timeout(30, read=None),
                event_hooks={"response": [answered]},
            )
            await stack.enter_async_context(bound(http))
            server: Any = streamable_http_client(place.url, http_client=http)
        else:
            command, *words = place.command
            server = StdioServerParameters(command=command, args=words, env=dict(os.environ), cwd=os.getcwd())
        client = Client(server, elicitation_callback=elicit, logging_callback=log, mode="legacy")
        return await use(await stack.enter_async_context(client))


def of_mount(name: str) -> McpPlace:
    """Returns a server of the mount at CTX_ROOT, used under that mount's policy."""
    command = (sys.executable, "-I", "-m", "cortexfs.cli.main", "mcp", "serve", "--server", name)
    return McpPlace(command, added=name)


def _fault(place: McpPlace, error: BaseException, answers: list[int]) -> Fault:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Fault):
        return error
    name = f"the MCP server {place}"
    if answers and answers[-1] in (401, 403):
        return Fault(
            "EACCES", f"{name} answers HTTP {answers[-1]}; show who you are with --header Authorization"
        )
    if isinstance(error, httpx2.HTTPStatusError):
        return Fault("EACCES", f"{name} answers HTTP {error.response.status_code}")
    if isinstance(error, MCPError):
        if error.code == CONNECTION_CLOSED:  # words of the SDK's, and of no server
            return Fault("EPROTO", f"{name} ended the connection; is it an MCP server?")
        return Fault("EIO", f"{name} says: {error}")
    if isinstance(error, httpx2.ConnectError):
        return Fault(
            "EHOSTDOWN", f"{name} cannot be reached; is the address right, and does a server run there?"
        )
    if isinstance(error, ValidationError):
        return Fault("EPROTO", f"{name} does not speak the protocol: {misfits(error.errors())}")
    if why := of_output(error):
        return Fault("EPROTO", f"{name} {why}")
    plain = error.strerror if isinstance(error, OSError) else None  # str(error) has more
    return Fault("EHOSTDOWN", f"{name} cannot be used: {plain or error or type(error).__name__}")
