"""Templates of questions, and agents, as prompts of an MCP server.

Rules: whoever made the server knows the templates (`PromptBook`) and reads them anew for each client that
asks. A prompt is text for the client's own model; nothing is asked here.
This file must never know where templates are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
from anyio import to_thread
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    PromptReference,
    TextContent,
)

from cortexfs.client.results import Failed
from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import COMPLETE, ListedPrompt
from cortexfs.mcp.results import enclosed

Context = ServerRequestContext[Any, Any]
MAX_VALUES = 100  # that the protocol lets be proposed
T = TypeVar("T")
SECONDS = 20.0  # for one prompt, which an MCP server of the mount may have to make


class PromptBook(Protocol):
    def listed(self) -> Sequence[ListedPrompt]: ...

    def made(self, name: str, values: Mapping[str, str]) -> Sequence[tuple[str, str | bytes]]:
        """Its messages, texts and files, each with its role; a Fault says what is wrong with the name or the
        values."""

    def completed(self, name: str, argument: Mapping[str, str], values: Mapping[str, str]) -> Sequence[str]:
        """Returns values that an argument, `name` and `value`, may be meant to have."""


class Prompting:
    def __init__(self, book: PromptBook) -> None:
        self._book = book

    def add_to(self, server: Server[Any]) -> None:
        server.add_request_handler("prompts/list", PaginatedRequestParams, self._list)
        server.add_request_handler("prompts/get", GetPromptRequestParams, self._get)
        server.add_request_handler(COMPLETE, CompleteRequestParams, self._complete)

    async def _list(self, _: Context, __: PaginatedRequestParams) -> ListPromptsResult:
        found: Sequence[ListedPrompt] = ()
        with anyio.move_on_after(SECONDS):
            found = await to_thread.run_sync(self._book.listed, abandon_on_cancel=True)
        return ListPromptsResult(prompts=[_prompt(one) for one in found])

    async def _get(self, _: Context, params: GetPromptRequestParams) -> GetPromptResult:
        said = await _in_time(partial(self._book.made, params.name, params.arguments or {}))
        return GetPromptResult(messages=[_message(role, content) for role, content in said])

    async def _complete(self, _: Context, params: CompleteRequestParams) -> CompleteResult:
        if not isinstance(params.ref, PromptReference):
            raise MCPError(INVALID_PARAMS, "arguments of prompts are completed, and no others")
        argument = {"name": params.argument.name, "value": params.argument.value}
        known = params.context.arguments if params.context else None
        values = await _in_time(partial(self._book.completed, params.ref.name, argument, known or {}))
        more = len(values) > MAX_VALUES
        return CompleteResult(completion=Completion(values=[*values[:MAX_VALUES]], has_more=more))


async def _in_time(work: Callable[[], T]) -> T:
    try:
        with anyio.fail_after(SECONDS):
            return await to_thread.run_sync(work, abandon_on_cancel=True)
    except Fault as fault:
        raise MCPError(INVALID_PARAMS, f"{fault.code}: {fault.message}") from None
    except Failed as failed:
        raise MCPError(INVALID_PARAMS, f"{failed.code}: {failed.message}") from None
    except TimeoutError:
        raise MCPError(INVALID_PARAMS, f"the prompt was not made within {SECONDS:g} s") from None


def _prompt(one: ListedPrompt) -> Prompt:
    wanted = [PromptArgument(name=each, required=True) for each in one.required]
    may = [PromptArgument(name=each, required=False) for each in one.optional]
    return Prompt(name=one.name, description=one.description or None, arguments=[*wanted, *may])


def _message(role: str, content: str | bytes) -> PromptMessage:
    part = TextContent(text=content) if isinstance(content, str) else enclosed(content)
    return PromptMessage(role="assistant" if role == "assistant" else "user", content=part)
