"""The templates of `ctx ask`, and the agents of a mount, as prompts for clients of `ctx mcp serve`.

Rules: a template is that of `ctx ask -t`: the user's own, a plugin's or an MCP server's. Its text is one of
the prompt's arguments. The prompt of an agent is its system prompt and a task. Prompts are read anew for each
request. A prompt is text for the client's own model; no model is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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

from cortexfs.cli import objects
from cortexfs.cli.ask import attach, prompts, template
from cortexfs.cli.ask.template import INPUT, AskOptions
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import nearest
from cortexfs.core.mcp_session import COMPLETE, ListedPrompt
from cortexfs.core.safe_text import one_line
from cortexfs.mcp.results import enclosed

TASK = "task"
AGENT = "agent/"
MAX_SYSTEM = 1 << 20
MAX_LISTED = 1000
MAX_VALUES = 100  # the most proposals that the protocol allows
SECONDS = 20.0  # for one prompt, which may need an MCP server of the mount

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")


class TemplateBook:
    def __init__(self, root: str) -> None:
        self._root = root

    def listed(self) -> Sequence[ListedPrompt]:
        own = {name: options for name in template.known() if (options := _own(name)) is not None}
        found = [
            entry.listed(name, one_line(entry.prompt or entry.system)[:200]) for name, entry in own.items()
        ]
        others = prompts.of_servers(self._root) | prompts.of_plugins(self._root)
        found += [entry for name, entry in others.items() if name not in own]
        for path in self._agents():
            name = objects.short(self._root, path)
            about = f"give {name} a task"
            found.append(ListedPrompt(name, about, (TASK,)))
        return found[:MAX_LISTED]

    def _agents(self) -> list[str]:
        """Returns the agents of this machine, whose system prompts are here."""
        paths = objects.paths_of(self._root, "agent")
        return [path for path in paths if not objects.is_elsewhere(path)]

    def messages(self, name: str, values: Mapping[str, str]) -> Sequence[tuple[str, str | bytes]]:
        """Returns the messages of a prompt, texts and files, each with its role. Raises a Fault for a wrong
        name or wrong values."""
        known = {each.name: each for each in self.listed()}
        if name not in known:
            raise Fault("ENOENT", f"there is no prompt {name!r}{nearest(name, known)}")
        arguments = {key: value for key, value in values.items() if key != INPUT}
        input_text = values.get(INPUT, "")
        if name.startswith(AGENT) and name not in template.known():
            return self._of_agent(name, values)
        options, unfilled = prompts.load(name, self._root, arguments)
        options = options.filled(unfilled, input_text)
        text = "\n\n".join(filter(None, (options.system, options.prompt)))
        before = [(each["role"], each["content"]) for each in options.before]
        files = [("user", attach.read(source)[1]) for source in options.attachments]
        return [*before, *files, *([("user", text)] if text else [])]

    def completions(self, name: str, argument: Mapping[str, str], values: Mapping[str, str]) -> Sequence[str]:
        """Returns proposed values for an argument, which has a `name` and the beginning of a `value`."""
        known = {prompt.name: prompt for prompt in self.listed()}
        target = argument["name"]
        if name not in known or target not in (*known[name].required, *known[name].optional):
            raise Fault("EINVAL", f"there is no prompt {name!r} with an argument {target!r}")
        if name in template.known():
            default = template.load(name).defaults.get(target, "")
            return [default] if default and default.startswith(argument["value"]) else []
        if name not in prompts.of_servers(self._root):
            return []
        return prompts.completions(name, self._root, argument, values)

    def _of_agent(self, name: str, values: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        if set(values) != {TASK}:
            raise Fault("EINVAL", f"{name} takes one argument, {TASK}")
        names.check(agent := name.removeprefix(AGENT))
        paths = [path for path in self._agents() if Path(path).name == agent]
        with open(f"{paths[-1]}.d/system.md", encoding="utf-8", errors="replace") as file:
            system = file.read(MAX_SYSTEM).strip()
        return [("user", "\n\n".join(filter(None, (system, values[TASK]))))]

    def add_to(self, server: Server[Any]) -> None:
        server.add_request_handler("prompts/list", PaginatedRequestParams, self._list)
        server.add_request_handler("prompts/get", GetPromptRequestParams, self._get)
        server.add_request_handler(COMPLETE, CompleteRequestParams, self._complete)

    async def _list(self, _: Context, __: PaginatedRequestParams) -> ListPromptsResult:
        found: Sequence[ListedPrompt] = ()
        with anyio.move_on_after(SECONDS):
            found = await to_thread.run_sync(self.listed, abandon_on_cancel=True)
        return ListPromptsResult(prompts=[_prompt(prompt) for prompt in found])

    async def _get(self, _: Context, params: GetPromptRequestParams) -> GetPromptResult:
        messages = await _in_time(partial(self.messages, params.name, params.arguments or {}))
        return GetPromptResult(messages=[_message(role, content) for role, content in messages])

    async def _complete(self, _: Context, params: CompleteRequestParams) -> CompleteResult:
        if not isinstance(params.ref, PromptReference):
            raise MCPError(INVALID_PARAMS, "only arguments of prompts can be completed")
        argument = {"name": params.argument.name, "value": params.argument.value}
        known = params.context.arguments if params.context else None
        values = await _in_time(partial(self.completions, params.ref.name, argument, known or {}))
        more = len(values) > MAX_VALUES
        return CompleteResult(completion=Completion(values=[*values[:MAX_VALUES]], has_more=more))


def _own(name: str) -> AskOptions | None:
    try:
        return template.load(name)
    except Fault:
        return None


async def _in_time(work: Callable[[], T]) -> T:
    try:
        with anyio.fail_after(SECONDS):
            return await to_thread.run_sync(work, abandon_on_cancel=True)
    except Fault as fault:
        raise MCPError(INVALID_PARAMS, f"{fault.code}: {fault.message}") from None
    except TimeoutError:
        raise MCPError(INVALID_PARAMS, f"the prompt was not made within {SECONDS:g} s") from None


def _prompt(prompt: ListedPrompt) -> Prompt:
    required = [PromptArgument(name=each, required=True) for each in prompt.required]
    optional = [PromptArgument(name=each, required=False) for each in prompt.optional]
    return Prompt(name=prompt.name, description=prompt.description or None, arguments=[*required, *optional])


def _message(role: str, content: str | bytes) -> PromptMessage:
    part = TextContent(text=content) if isinstance(content, str) else enclosed(content)
    return PromptMessage(role="assistant" if role == "assistant" else "user", content=part)
