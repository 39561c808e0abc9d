"""The hooks of plugins, as values: for runs of tools and models, and for the life of the plugin itself.

    hostcalls.Plugin.hooks      words of STAGES and of EVENTS
    HookResult                  the answer of middleware
    HookedResult, heard         the end of a call, as plugins see it
    LIFECYCLE, EXPORTS          the moments when a module's hooks are called, and its possible exports

Rules: a plugin has no hook for which it has no capability. All that plugins are shown is bounded. Hosts,
documentation and tests read the same tables.
This file must never know how a plugin is reached, nor for which user a run is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Observer

PRE, POST = "middleware:pre", "middleware:post"
# By the capability for a stage of middleware: the hidden tool of a host that asks the plugin.
STAGES = {PRE: ":middleware-pre", POST: ":middleware-post"}
STAGE_NAMES = {PRE: "pre-tool", POST: "post-tool"}  # the names in requests to plugins
# Other hidden tools of a host: for an event, for the removal of the plugin, and for a command by its name.
EVENT, UNINSTALL, COMMAND = ":event", ":uninstall", ":command "
LISTENER = "events:listener"
CONFIG_CHANGE = "config:change"  # sent by hosts, as each user has settings of its own
TOOL_EVENTS = ("tool:pre-execute", "tool:post-execute")

LOAD_SECONDS = 14.0  # for a plugin to describe itself; less than the daemon waits for a description
HOOK_SECONDS = 5.0
# For the hooks of a removal: to start a process, and to call three hooks, each with a limit of its own.
UNINSTALL_SECONDS = 40

# Bytes of a call's input or output, in JSON, that middleware sees and may return. Both pass through the
# daemon, which holds them while plugins are asked.
MAX_SHOWN = 768 << 10
MAX_NOTED = 256 << 10  # bytes of a change in the frame that reports it
MAX_HEARD = 8000  # characters of an output in an event
MAX_ARGS = 64 << 10  # bytes of an input in an event

Failure = Literal["closed", "open"]


def hooks(capabilities: Collection[str], events: Iterable[str]) -> tuple[str, ...]:
    """Returns the hooks of a plugin with these effective capabilities."""
    stages = tuple(stage for stage in STAGES if stage in capabilities)
    return (*stages, *events) if LISTENER in capabilities else stages


class Abort(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    message: str = ""


class HookResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer of middleware. Unknown fields are ignored."""

    abort: Abort | None = None
    modify_input: dict[str, Any] | None = None
    modify_output: str | None = None


class HookedResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The end of a call of a tool: the seed's ToolCallResult. In an event it also says if output was cut."""

    tool_name: str
    success: bool
    output: str
    duration_ms: int
    error: str | None = None
    truncated: bool = False
    output_length: int | None = None


class HookedOutput(NamedTuple):
    """An output after plugins have seen it. With `refused`, nobody may see the output."""

    output: str
    refused: Fault | None
    notes: list[Observer]


class HookedCall(Protocol):
    """A call about which middleware is asked, and which is reported to listeners. It is a MiddlewareCall, or
    a nested call of an agent."""

    @property
    def changed_by(self) -> str:
        """Returns the plugin that has changed the input, or nothing."""

    @property
    def is_begun(self) -> bool:
        """Returns True once the tool may run, also after its end."""

    @property
    def holds(self) -> bool:
        """Returns True if plugins see the output before the caller does."""

    @property
    def listens(self) -> bool:
        """Returns True if any plugin wants the output."""

    def hold(self, size: int) -> None:
        """Count `size` more bytes held for this call. Raises EAGAIN if they are too many for its user."""

    def let_go(self) -> None: ...

    def too_large(self) -> None:
        """Raises a Fault as the output is too large for plugins, unless it may pass without them."""

    async def before(self, input_: dict[str, Any] | None) -> tuple[dict[str, Any], list[Observer]]:
        """Returns the tool's input, and the notes about it. Raises a Fault if the tool must not run. An input
        of None is too large to be shown."""

    def begin(self, input_: dict[str, Any]) -> None:
        """Note that the tool runs now, with this input."""

    async def after(self, output: str, fault: Fault | None, missing: int = 0) -> HookedOutput: ...

    def end(self, output: str, fault: Fault | None, length: int = 0) -> None:
        """Report the end of the call to listeners, without asking middleware."""


def heard(result: HookedResult, length: int = 0) -> HookedResult:
    """Returns `result` as an event has it. If its output is only the beginning, `length` is the whole's."""
    length = max(length, len(result.output))
    if length <= MAX_HEARD:
        return result
    cut = result.output[:MAX_HEARD]
    return msgspec.structs.replace(result, output=cut, truncated=True, output_length=length)


def heard_args(input_: dict[str, Any]) -> dict[str, Any]:
    """Returns an input as an event has it. An object cannot be cut, so a too large one is left out."""
    return input_ if len(msgspec.json.encode(input_)) <= MAX_ARGS else {}


def refusal(plugin: str, abort: Abort) -> Fault:
    why = abort.message or abort.reason or "it gives no reason"
    return Fault("EPERM", f"the plugin {plugin} does not allow it: {why}")


def note(plugin: str, tool: str, call: str, **changes: Any) -> Observer:
    """Returns the note that reports a plugin's change to the reader of the run."""
    about = {"plugin": plugin, "tool": tool} | ({"call": call} if call else {})
    content = msgspec.json.encode(about | changes)
    if len(content) > MAX_NOTED:
        content = msgspec.json.encode(about | {"changed": list(changes)})
    return Observer(source="middleware", content=content.decode())


# By event of a plugin's life: the hooks that are called, in this order. A hook not exported is skipped.
LIFECYCLE = {
    "install": ("onInstall", "onLoad", "onActivate"),
    "enable": ("onLoad", "onActivate"),
    "disable": ("onDeactivate", "onUnload"),
    "remove": ("onDeactivate", "onUnload", "onUninstall"),
    "config": ("onConfigChange",),  # once for each key that changed
}
# The possible exports of a module, with the capability for each. Without it, the export is not read.
EXPORTS = {
    "tools": "tools",
    "providers": "config:provider",
    "cliCommands": "cli:commands",
    "onInstall": None,
    "onLoad": None,
    "onActivate": None,
    "onDeactivate": None,
    "onUnload": None,
    "onUninstall": None,
    "onConfigChange": None,
    "middlewarePre": "middleware:pre",
    "middlewarePost": "middleware:post",
}
# The events and the members of each, beside its type.
EVENTS = {
    "session:start": {"sessionId": "string"},
    "session:end": {"sessionId": "string"},
    "tool:pre-execute": {"toolName": "string", "args": "object"},
    "tool:post-execute": {"toolName": "string", "result": "any"},
    "llm:pre-call": {"provider": "string", "model": "string"},
    "llm:post-call": {"provider": "string", "model": "string", "tokensIn": "number", "tokensOut": "number"},
    "agent:turn-start": {"sessionId": "string", "turnId": "string"},
    "agent:turn-end": {"sessionId": "string", "turnId": "string", "response": "string"},
    "config:change": {"key": "string", "value": "any"},
    "daemon:status": {"daemon": "string", "status": "up or down"},
}


def event(type_: str, **payload: Any) -> bytes:
    """Returns an event as plugins receive it: {"type": ..., and its members}. Raises EINVAL for no event."""
    members = EVENTS.get(type_)
    if members is None or payload.keys() != members.keys():
        expected = ", ".join(members or EVENTS)
        raise Fault("EINVAL", f"the event {type_} of {', '.join(payload)} is not one of {expected}")
    for key, word in members.items():
        if not _fits(payload[key], word):
            raise Fault("EINVAL", f"{type_}.{key}: expected {word}, got {jsontext.shown(payload[key])}")
    return msgspec.json.encode({"type": type_, **payload})


def _fits(value: Any, word: str) -> bool:
    if word == "up or down":
        return value in ("up", "down")
    return word == "any" or jsontext.type_name(value) == word
