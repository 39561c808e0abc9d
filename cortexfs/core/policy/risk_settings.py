"""policy.toml: what an administrator says about the calls of agents.

    mode = "balanced"
    deny = ["deploy.*"]

    [tools."git.push"]
    require_confirmation = true

Rules: every key has a default, an unknown one is refused. Nothing here lowers the floor of an effect.
This file must never know where the file lies, or what a level is.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from cortexfs.core import tomltext
from cortexfs.core.errors import Fault

FILE = "policy.toml"

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Mode: TypeAlias = Literal["strict", "balanced", "open"]
LevelWord: TypeAlias = Literal["allow", "review", "require_confirmation", "block"]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one tool."""

    tool_risk: Share | None = None
    file_sensitivity: Share | None = None
    blast_radius: Share | None = None
    irreversibility: Share | None = None
    require_confirmation: bool = False
    block: bool = False
    allow_background: bool = False


class RiskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode = "balanced"
    auto_approve_up_to: LevelWord | None = None  # instead of a mode
    allow: tuple[str, ...] = ()  # patterns of names; empty: all
    deny: tuple[str, ...] = ()
    tools: dict[str, Profile] = {}


DEFAULT = RiskSettings()


def decode(text: str) -> RiskSettings:
    """Returns the settings of policy.toml; raises EINVAL with the key that is wrong."""
    table = tomltext.table(text.encode(), FILE)
    tools = table.pop("tools", {})
    if not isinstance(tools, dict):
        raise Fault("EINVAL", f"{FILE}: tools holds tables, such as [tools.NAME]")
    profiles = {name: tomltext.converted(one, Profile, FILE, f"tools.{name}") for name, one in tools.items()}
    settings = msgspec.structs.replace(tomltext.converted(table, RiskSettings, FILE), tools=profiles)
    for pattern in (*settings.allow, *settings.deny):
        if not pattern or pattern.count("*") > 1:
            raise Fault("EINVAL", f"{FILE}: {pattern!r} is no pattern; it is a name with at most one *")
    return settings


def matches(pattern: str, name: str) -> bool:
    """Returns True if `name` is the pattern, whose one `*` stands for anything."""
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
