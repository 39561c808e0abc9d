"""The hooks of plugins, while things run and when something happens to the plugin, as values.

    hostcalls.Plugin.hooks      words of STAGES and of EVENTS
    HookResult                  what middleware answers
    HookedResult, heard         what it is shown of a call that has ended
    LIFECYCLE, EXPORTS          the moments when a module's hooks are called, and what it may export

Rules: what a plugin has no capability for is none of its hooks. What is shown is bounded. Tables are read by
hosts, documentation and tests alike.
This file must never know how a plugin is reached, nor whom a run is for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Observer

PRE, POST = "middleware:pre", "middleware:post"
# The capability that is a stage of middleware, and the hidden tool of a host that asks the plugin.
STAGES = {PRE: ":middleware-pre", POST: ":middleware-post"}
STAGE_NAMES = {PRE: "pre-tool", POST: "post-tool"}  # as a plugin is told
# Hidden tools of a host besides: for an event, for when the plugin is removed, and for a command by its name.
EVENT, UNINSTALL, COMMAND = ":event", ":uninstall", ":command "
LISTENER = "events:listener"
CONFIG_CHANGE = "config:change"  # which hosts tell of: settings are their users'
TOOL_EVENTS = ("tool:pre-execute", "tool:post-execute")

LOAD_SECONDS = 14.0  # for a plugin to say what it has; less than the daemon waits for a description
HOOK_SECONDS = 5.0
# Of the last hooks: a process that has to be started, and three that may take their time each.
UNINSTALL_SECONDS = 40

# Of a call's input and output, in JSON, that middleware sees and may answer. Both travel through the daemon,
# which holds them for as long as plugins are asked.
MAX_SHOWN = 768 << 10
MAX_NOTED = 256 << 10  # bytes of what was changed, in a frame that says so
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
    """The answer of middleware; other fields of it are ignored."""

    abort: Abort | None = None
    modify_input: dict[str, Any] | None = None
    modify_output: str | None = None


class HookedResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a call of a tool has ended: the seed's ToolCallResult, of an event with what was cut off."""

    tool_name: str
    success: bool
    output: str
    duration_ms: int
    error: str | None = None
    truncated: bool = False
    output_length: int | None = None


class HookedOutput(NamedTuple):
    """An output after plugins have seen it; `refused` where nobody is to see it."""

    output: str
    refused: Fault | None
    notes: list[Observer]


class HookedCall(Protocol):
    """A call about which plugins are asked, and of which they are told: MiddlewareCall, and the nested call
    of an agent's."""

    @property
    def changed_by(self) -> str:
        """The plugin that has changed the input; empty for none."""

    @property
    def is_begun(self) -> bool:
        """Returns True if the tool may run, or has."""

    @property
    def holds(self) -> bool:
        """Returns True if its output is for plugins first."""

    @property
    def listens(self) -> bool:
        """Returns True if its output is wanted at all."""

    def hold(self, size: int) -> None:
        """So many bytes more are held for it; EAGAIN where they are too many of this user's."""

    def let_go(self) -> None: ...

    def too_large(self) -> None:
        """Its output is more than plugins are shown: a Fault, unless it may pass without."""

    async def before(self, input_: dict[str, Any] | None) -> tuple[dict[str, Any], list[Observer]]:
        """Returns the tool's input, and the notes about it; raises a Fault where the tool is not to run. None
        is an input that is too large to be shown."""

    def begin(self, input_: dict[str, Any]) -> None:
        """It runs now, with this."""

    async def after(self, output: str, fault: Fault | None, missing: int = 0) -> HookedOutput: ...

    def end(self, output: str, fault: Fault | None, length: int = 0) -> None:
        """It has ended so, without anybody's being asked."""


def heard(result: HookedResult, length: int = 0) -> HookedResult:
    """As an event has it; `length` is that of the whole output where this is only its beginning."""
    length = max(length, len(result.output))
    if length <= MAX_HEARD:
        return result
    cut = result.output[:MAX_HEARD]
    return msgspec.structs.replace(result, output=cut, truncated=True, output_length=length)


def heard_args(input_: dict[str, Any]) -> dict[str, Any]:
    """As an event has it: an object cannot be cut, so one that is too large is left out."""
    return input_ if len(msgspec.json.encode(input_)) <= MAX_ARGS else {}


def refusal(plugin: str, abort: Abort) -> Fault:
    why = abort.message or abort.reason or "it does not say why"
    return Fault("EPERM", f"the plugin {plugin} does not allow it: {why}")


def note(plugin: str, tool: str, call: str, **changed: Any) -> Observer:
    """Returns the note about a change that a plugin has made, so that it can be seen."""
    about = {"plugin": plugin, "tool": tool} | ({"call": call} if call else {})
    content = msgspec.json.encode(about | changed)
    if len(content) > MAX_NOTED:
        content = msgspec.json.encode(about | {"changed": list(changed)})
    return Observer(source="middleware", content=content.decode())


# What happens to a plugin: the hooks that are called, in this order. One that is not exported is passed over.
LIFECYCLE = {
    "install": ("onInstall", "onLoad", "onActivate"),
    "enable": ("onLoad", "onActivate"),
    "disable": ("onDeactivate", "onUnload"),
    "remove": ("onDeactivate", "onUnload", "onUninstall"),
    "config": ("onConfigChange",),  # once for each key that changed
}
# What a module may export; an export without its capability is not read.
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
    """An event as a plugin receives it: {"type": ..., and its members}. EINVAL if it is no such event."""
    members = EVENTS.get(type_)
    if members is None or payload.keys() != members.keys():
        wanted = ", ".join(members or EVENTS)
        raise Fault("EINVAL", f"the event {type_} of {', '.join(payload)} is not one of {wanted}")
    for key, word in members.items():
        if not _fits(payload[key], word):
            raise Fault("EINVAL", f"{type_}.{key}: expected {word}, got {jsontext.shown(payload[key])}")
    return msgspec.json.encode({"type": type_, **payload})


def _fits(value: Any, word: str) -> bool:
    if word == "up or down":
        return value in ("up", "down")
    return word == "any" or jsontext.type_name(value) == word
