"""The daemon's calls of an ESM plugin beside its tools: events, middleware, commands, and the last hook.

Each is a tool of the host under a name that no tool can have. So a call of it has an identity, a deadline and
a cancel like any other. Hosts describe the commands, and none of the others.

Rules: there is no such tool without the plugin's capability or declaration for it. Middleware fails closed:
an error or a late answer is an error for the caller, and never an empty result.
This file must never know when the daemon asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import (
    COMMAND,
    EVENT,
    HOOK_SECONDS,
    LISTENER,
    POST,
    PRE,
    STAGES,
    UNINSTALL,
    UNINSTALL_SECONDS,
    HookResult,
)
from cortexfs.core.manifestjson.fields import Argument, CommandField, Option
from cortexfs.core.manifestjson.rules import of_commands
from cortexfs.host.esm.child import EsmError

if TYPE_CHECKING:
    from cortexfs.host.esm.tools import EsmPlugin

EXPORTS = {PRE: "middlewarePre", POST: "middlewarePost"}
COMMAND_SECONDS = 600


class Hidden(sdk.Tool):
    """One of these tools; `does` gets the input and the runtime."""

    description = ""
    input_schema: Mapping[str, Any] = {"type": "object"}

    def __init__(
        self, name: str, does: Callable[[dict[str, Any], sdk.ToolRuntime], object], seconds: float
    ) -> None:
        self.name = name
        self.timeout_secs = int(seconds)
        self._does = does

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> object:
        try:
            return self._does(input, runtime)
        except EsmError as failed:
            return sdk.ToolResult.error(str(failed))


class CommandTool(Hidden):
    """A command of `cortex`, described as it was declared."""

    def __init__(self, plugin: EsmPlugin, command: CommandField) -> None:
        super().__init__(COMMAND + command.name, self._run, COMMAND_SECONDS)
        self.description = command.description
        every: tuple[Argument | Option, ...] = (*command.args, *command.options)
        self.input_schema = {  # abi.md 9.17
            "type": "object",
            "properties": {
                argument.name: {"type": argument.type, "description": argument.description}
                for argument in every
            },
            "required": [argument.name for argument in command.args if argument.required],
            "additionalProperties": False,
        }
        self._plugin = plugin
        self._declared = command

    def _run(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> str:
        directory, name = os.getcwd(), self._declared.name
        facts = context(runtime, directory) | {"toolName": name}
        request = {"do": "command", "command": name, "args": input, "context": facts}
        answer = self._plugin.ask(directory, request, COMMAND_SECONDS, runtime)
        return answer if isinstance(answer, str) else ""

    def facts(self) -> dict[str, Any]:
        return {"command": msgspec.to_builtins(self._declared)}


def hidden(
    plugin: EsmPlugin, has: Collection[str], events: Collection[str], commands: Iterable[CommandField]
) -> Iterator[Hidden]:
    def uninstall(input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        failures = plugin.uninstall()
        return sdk.ToolResult.error("; ".join(failures)) if failures else sdk.ToolResult.success("")

    def deliver(event: dict[str, Any], runtime: sdk.ToolRuntime) -> None:  # abi.md 9.13, 9.42
        if event.get("type") in events:
            plugin.tell({"event": event}, runtime)

    yield Hidden(UNINSTALL, uninstall, UNINSTALL_SECONDS)
    if LISTENER in has:
        yield Hidden(EVENT, deliver, HOOK_SECONDS)
    for stage, export in EXPORTS.items():
        if stage in has:
            yield Hidden(STAGES[stage], _middleware(plugin, export), HOOK_SECONDS)
    if "cli:commands" in has:
        yield from (CommandTool(plugin, command) for command in commands)


def _middleware(plugin: EsmPlugin, export: str) -> Callable[[dict[str, Any], sdk.ToolRuntime], str]:
    def does(input: dict[str, Any], runtime: sdk.ToolRuntime) -> str:
        request = {"do": "hook", "hook": export, "args": [input], "bare": True}
        directory = os.getcwd()
        plugin.ready(directory, runtime)  # loading has a limit of its own
        answer = plugin.ask(directory, request, HOOK_SECONDS, runtime)
        try:
            result = msgspec.convert({} if answer is None else answer, HookResult)
        except msgspec.ValidationError as error:
            raise Fault("EPROTO", f"{export} returned a wrong result: {error}") from None
        return msgspec.json.encode(result).decode()

    return does


def commands_of(declared: Iterable[CommandField], exported: object) -> tuple[CommandField, ...]:
    """Returns the commands of the manifest and of the module (abi.md 9.16, 9.40)."""
    try:
        more = msgspec.convert(exported, tuple[CommandField, ...])
    except msgspec.ValidationError as error:
        raise Fault("EPROTO", f"its module exports wrong cliCommands: {error}") from None
    for problem in of_commands(more):
        raise Fault("EPROTO", f"its module exports a wrong command: {problem.sentence('cliCommands')}")
    return tuple({command.name: command for command in (*more, *declared)}.values())


def context(runtime: sdk.ToolRuntime, directory: str) -> dict[str, Any]:
    """Returns the facts of a ToolContext about the call, beside those that the process knows itself."""
    invocation = runtime.invocation
    return {
        **({"dryRun": True} if invocation.dry_run else {}),
        "toolName": invocation.tool_name,
        "sessionId": invocation.session_id,
        "agentId": invocation.actor,
        "source": invocation.source,
        "workingDir": directory,
        "workspaceDir": directory,
    }
