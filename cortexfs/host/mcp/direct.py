"""The SDK's session without its loop: a thread runs one of its requests to the end by itself.

Such a request waits for nothing but its answer. So `driven` runs the coroutine, and passes its question to
`ask`. No task, stream or other thread is in between: these would cost more than all the rest.

Rules: a session here has adopted the agreement of the SDK's client with the server, and is never entered.
This file must never know how a question gets to the server.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import Any, TypeAlias, TypeVar, cast

import anyio
from mcp import Client, ClientSession
from mcp.shared.dispatcher import CallOptions, Dispatcher
from mcp_types import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    ListToolsResult,
    PaginatedRequestParams,
    Request,
    Result,
    RootsCapability,
)
from pydantic import ConfigDict

from cortexfs.core.mcp_session import ListedPrompt
from cortexfs.core.safe_text import one_line
from cortexfs.host.mcp.limits import McpViolation

MAX_TOOLS = 1000
MAX_PAGES = 100
PROMPT_SECONDS = 2.0
MAX_PROMPTS, MAX_ARGUMENTS, MAX_ABOUT = 100, 20, 200  # as each is part of a schema
T = TypeVar("T")


class RawRequest(Request[dict[str, Any], str]):
    """Any method with any parameters."""


class RawResult(Result):
    """An answer, with all its fields."""

    model_config = ConfigDict(extra="allow")


class HostClient(Client):
    """The SDK's client, with sessions that `_quiet` has changed."""

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        return _quiet(await super()._build_session(exit_stack))


def _quiet(session: ClientSession) -> ClientSession:
    """Stop the session from declaring that it reports changes of its roots: it never does."""
    build = session._build_capabilities

    def quiet(version: str) -> ClientCapabilities:
        capabilities = build(version)
        return capabilities.model_copy(
            update={"roots": capabilities.roots and RootsCapability(list_changed=False)}
        )

    session._build_capabilities = quiet  # type: ignore[method-assign]
    return session


SdkRequest: TypeAlias = tuple[str, dict[str, Any]]  # a method and its parameters


class _Asking:
    """The part of a dispatcher that a session uses without being entered."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        return await _answer_to((method, dict(params or {})))


@types.coroutine
def _answer_to(question: SdkRequest) -> Generator[SdkRequest, dict[str, Any], dict[str, Any]]:
    return (yield question)


def driven(work: Coroutine[Any, Any, T], ask: Callable[[str, dict[str, Any]], dict[str, Any]]) -> T:
    """Returns the result of a session's request."""
    try:
        question = work.send(None)
        while True:
            question = work.send(ask(*question))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        work.close()


async def pages(client: Client) -> list[ListToolsResult]:
    """Returns the list of a server's tools. Raises McpViolation if it is too long."""
    found: list[ListToolsResult] = []
    cursor, tools = None, 0
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found.append(page)
        tools += len(page.tools)
        cursor = page.next_cursor
        if cursor is None or tools > MAX_TOOLS:
            break
    if cursor is not None or tools > MAX_TOOLS:
        raise McpViolation(f"has over {MAX_TOOLS} tools, or {MAX_PAGES} pages of them")
    return found


async def prompts(client: Client) -> tuple[ListedPrompt, ...]:
    """Returns the first page of a server's prompts, which are listed beside its tools; none if that fails."""
    if client.server_capabilities.prompts is None:
        return ()
    found: list[ListedPrompt] = []
    with suppress(Exception), anyio.move_on_after(PROMPT_SECONDS):  # it is a server without them, too
        for prompt in (await client.list_prompts()).prompts[:MAX_PROMPTS]:
            arguments = (prompt.arguments or [])[:MAX_ARGUMENTS]
            required = tuple(each.name for each in arguments if each.required)
            optional = tuple(each.name for each in arguments if not each.required)
            about = one_line(prompt.description or prompt.title or "")[:MAX_ABOUT]
            found.append(ListedPrompt(prompt.name, about, required, optional))
    return tuple(found)


def session(
    agreed: InitializeResult | DiscoverResult,
    info: Implementation,
    pages: Sequence[ListToolsResult],
    callbacks: Mapping[str, Any],
) -> ClientSession:
    """Returns a session that adopts the agreement, knows these tools, and declares the same questions."""
    known = _quiet(ClientSession(dispatcher=cast(Dispatcher[Any], _Asking()), client_info=info, **callbacks))
    known.adopt(agreed)
    if any(tool.output_schema is not None for page in pages for tool in page.tools):
        import_module(
            "jsonschema.validators"
        )  # now, where no cancellation strikes: else the SDK would do so in a call
    for number, page in enumerate(pages):
        params = PaginatedRequestParams(cursor=str(number)) if number else None
        fields = page.model_dump(by_alias=True, mode="json", exclude_none=True)
        driven(known.list_tools(params=params), lambda *_, fields=fields: fields)
    return known
