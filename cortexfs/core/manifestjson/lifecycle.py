"""The exports of a plugin's module, the moments when its hooks are called, and the events that there are.

Rules: tables, read by hosts, documentation and tests alike.
This file must never know how a hook is called.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault

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


def handler_name(command: str) -> str:
    """The export that answers `cortex <command>` where there is no default export."""
    return re.sub(r"[-_.]+([a-zA-Z0-9])", lambda found: found[1].upper(), command)
