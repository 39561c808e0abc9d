"""Templates of questions, and agents, as prompts of an MCP server.

Rules: whoever made the server knows the templates (`PromptBook`) and reads them anew for each client that
asks. A prompt is text for the client's own model; nothing is asked here.
This file must never know where templates are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import anyio
from anyio import to_thread
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import ListedPrompt

Context = ServerRequestContext[Any, Any]
SECONDS = 20.0  # for one prompt, which an MCP server of the mount may have to make


class PromptBook(Protocol):
    def listed(self) -> Sequence[ListedPrompt]: ...

    def made(self, name: str, values: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """Its messages, each with its role; a Fault says what is wrong with the name or the values."""


class Prompting:
    def __init__(self, book: PromptBook) -> None:
        self._book = book

    def add_to(self, server: Server[Any]) -> None:
        server.add_request_handler("prompts/list", PaginatedRequestParams, self._list)
        server.add_request_handler("prompts/get", GetPromptRequestParams, self._get)

    async def _list(self, _: Context, __: PaginatedRequestParams) -> ListPromptsResult:
        found: Sequence[ListedPrompt] = ()
        with anyio.move_on_after(SECONDS):
            found = await to_thread.run_sync(self._book.listed, abandon_on_cancel=True)
        return ListPromptsResult(prompts=[_prompt(one) for one in found])

    async def _get(self, _: Context, params: GetPromptRequestParams) -> GetPromptResult:
        make = partial(self._book.made, params.name, params.arguments or {})
        try:
            with anyio.fail_after(SECONDS):
                said = await to_thread.run_sync(make, abandon_on_cancel=True)
        except Fault as fault:
            raise MCPError(INVALID_PARAMS, f"{fault.code}: {fault.message}") from None
        except TimeoutError:
            raise MCPError(INVALID_PARAMS, f"the prompt was not made within {SECONDS:g} s") from None
        messages = [_message(role, text) for role, text in said]
        return GetPromptResult(messages=messages)


def _prompt(one: ListedPrompt) -> Prompt:
    wanted = [PromptArgument(name=each, required=True) for each in one.required]
    may = [PromptArgument(name=each, required=False) for each in one.optional]
    return Prompt(name=one.name, description=one.description or None, arguments=[*wanted, *may])


def _message(role: str, text: str) -> PromptMessage:
    return PromptMessage(role="assistant" if role == "assistant" else "user", content=TextContent(text=text))
