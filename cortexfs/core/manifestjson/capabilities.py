"""The capabilities of a manifest.json: the permissions of each, and its effects for policy.

Rules: the table is literal. Policy sees a permission as effects of this project, so that tools of both plugin
systems are confirmed alike. An extension point is a way to call the plugin, and no effect of its tools. Tools
in one process share its rights, so policy sees these beside the effects that each tool declares. Effective
capabilities are declared - denied + granted, never only the declared ones.
This file must never know where denials and grants are kept, nor how a host enforces them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Effect
from cortexfs.core.jsontext import nearest

Flag: TypeAlias = Literal["read", "write", "run", "net"]


class Capability(msgspec.Struct, frozen=True):
    about: str
    effects: tuple[Effect, ...] = ()
    deno: Flag | None = None  # the permission of Deno; None: Deno has none for it, and policy decides
    permission: bool = False  # False: it is an extension point
    reserved: bool = False
    is_seen: bool = False  # a plugin with it adds a part that its users see


def _permission(about: str, effect: Effect, deno: Flag | None = None) -> Capability:
    return Capability(about, (effect,), deno, permission=True)


# The defaults of each kind are those of cortexfs.sdk.ToolEffect; a test compares them.
_READ = Effect("read_file", "reversible", "on_risk", "not_supported")
_WRITE = Effect("write_file", "partially_reversible", "always", "not_supported")
_DELETE = Effect("delete_file", "irreversible", "always", "not_supported")
_RUN = Effect("run_process", "partially_reversible", "always", "not_supported")
_REQUEST = Effect("network_request", "reversible", "on_risk", "not_supported")
# A process that listens lets others in. So it is asked about, unlike requests.
_LISTEN = Effect("network_request", "reversible", "always", "not_supported")
_INTERNAL = Effect("introspect_runtime", "reversible", "on_risk", "not_supported")
_REMEMBER = Effect("persist_memory", "partially_reversible", "always", "not_supported")

PROCESS = "plugin process"  # the target of effects that no tool has declared
_RIGHTS: dict[Flag, Effect] = {"read": _READ, "write": _WRITE, "run": _RUN, "net": _REQUEST}

CAPABILITIES = {
    "tools": Capability("register tools", is_seen=True),
    "cli:commands": Capability("add cortex subcommands", is_seen=True),
    "ui:panel": Capability("add a panel to the web interface", is_seen=True),
    "ui:widget": Capability("add a widget to the dashboard", is_seen=True),
    "config:schema": Capability("add settings"),
    "config:provider": Capability("register model providers", is_seen=True),
    "memory:store": Capability("a memory backend", reserved=True),
    "memory:embedder": Capability("an embedding provider", reserved=True),
    "events:listener": Capability("receive the events that the manifest lists", is_seen=True),
    "middleware:pre": Capability("be asked before each tool call", is_seen=True),
    "middleware:post": Capability("be asked after each tool call", is_seen=True),
    "fs:read": _permission("read files", _READ, "read"),
    "fs:list": _permission("list directories", _READ, "read"),
    "fs:write": _permission("write files", _WRITE, "write"),
    "fs:edit": _permission("change files", _WRITE, "write"),
    "fs:delete": _permission("delete files", _DELETE, "write"),
    "fs:search": _permission("search in files", _READ),
    "shell:run": _permission("run commands", _RUN, "run"),
    "network:fetch": _permission("make HTTP and HTTPS requests", _REQUEST, "net"),
    "net:outbound": _permission("connect to the network", _REQUEST, "net"),
    "net:inbound": _permission("accept connections", _LISTEN, "net"),
    "db:read": _permission("read internal databases", _INTERNAL),
    "db:write": _permission("write internal databases", _REMEMBER),
}


def bringing(capabilities: Iterable[str]) -> list[str]:
    """Returns the capabilities with which a plugin adds a part that its users see."""
    return [name for name in capabilities if name in CAPABILITIES and CAPABILITIES[name].is_seen]


class CapabilityReason(msgspec.Struct, frozen=True):
    """The reason why a plugin has a capability, or does not have it."""

    capability: str
    effective: bool
    reason: str


class Effective(msgspec.Struct, frozen=True):
    capabilities: tuple[str, ...]  # in the order of CAPABILITIES
    explained: tuple[CapabilityReason, ...]  # all declared, denied or granted, in the same order

    def has(self, capability: str) -> bool:
        return capability in self.capabilities


# (declared, denied, granted): effective, reason. Capabilities without any of the three are not explained.
_REASONS = {
    (True, False, False): (True, "declared by the manifest"),
    (True, True, False): (False, "declared by the manifest, denied by the administrator"),
    (True, False, True): (True, "declared by the manifest, and granted by the administrator"),
    (True, True, True): (True, "denied and granted by the administrator: a grant overrides a denial"),
    (False, True, False): (False, "denied by the administrator, and not declared either"),
    (False, False, True): (True, "granted by the administrator, though the manifest does not declare it"),
    (False, True, True): (True, "denied and granted by the administrator: a grant overrides a denial"),
}


def check(name: str) -> str:
    """Returns `name` if it is a capability. Raises EINVAL with the likely name."""
    if name not in CAPABILITIES:
        raise Fault("EINVAL", f"{jsontext.shown(name)} is no capability{mend(name)}")
    return name


def mend(name: str) -> str:
    return nearest(name, CAPABILITIES) or "; docs/manifest-json.md lists them"


def effective(declared: Collection[str], denied: Collection[str], granted: Collection[str]) -> Effective:
    """Returns declared - denied + granted. Raises EINVAL for a capability that does not exist."""
    for name in (*declared, *denied, *granted):
        check(name)
    reasons = tuple(
        CapabilityReason(name, *_REASONS[key])
        for name in CAPABILITIES
        if any(key := (name in declared, name in denied, name in granted))
    )
    return Effective(tuple(reason.capability for reason in reasons if reason.effective), reasons)


def effects(capabilities: Iterable[str]) -> tuple[Effect, ...]:
    """Returns the effects for policy, without duplicates."""
    return tuple(
        dict.fromkeys(effect for name in capabilities for effect in CAPABILITIES[check(name)].effects)
    )


def deno_permissions(capabilities: Iterable[str]) -> tuple[Flag, ...]:
    """Returns the permissions of Deno that the host may give, for directories and servers that it allows."""
    return tuple(sorted({flag for name in capabilities if (flag := CAPABILITIES[check(name)].deno)}))


def process_rights(capabilities: Iterable[str]) -> tuple[Effect, ...]:
    """Returns the effects that a process with these permissions may have, whatever its tools declare."""
    permissions = deno_permissions(capabilities)
    return tuple(replace(effect, target=PROCESS) for flag, effect in _RIGHTS.items() if flag in permissions)


def tool_fault(tool: str, needs: Iterable[str], rights: Effective) -> str | None:
    """Returns why a tool cannot be registered: it needs capabilities that its plugin lacks. Else None."""
    missing = [name for name in needs if not rights.has(name)]
    if not missing:
        return None
    names = ", ".join(missing)
    return (
        f"the tool {tool} needs {names}, which its plugin does not have; "
        f"declare it in the manifest's capabilities, or grant it with ctx plugin permissions"
    )
