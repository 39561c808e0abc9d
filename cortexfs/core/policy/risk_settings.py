"""policy.toml: what an administrator says about the calls of agents.

    mode = "balanced"
    deny = ["deploy.*"]

    [tools."git.push"]
    require_confirmation = true

Rules: every key has a default, an unknown one is refused. Nothing here lowers the floor of an effect.
This file must never know where the file lies, or what a level is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta

from cortexfs.core.errors import Fault

FILE = "policy.toml"

Of = TypeVar("Of", bound=msgspec.Struct)

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
WORDS: dict[str, tuple[str, ...]] = {"mode": get_args(Mode), "auto_approve_up_to": get_args(LevelWord)}


def decode(text: str) -> RiskSettings:
    """Returns the settings of policy.toml; raises EINVAL with the key that is wrong."""
    try:
        read = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise Fault("EINVAL", f"{FILE} is not TOML: {error}") from None
    tables = read.pop("tools", {})
    if not isinstance(tables, dict):
        raise Fault("EINVAL", f"{FILE}: tools holds tables, such as [tools.NAME]")
    profiles = {name: _convert(table, Profile, f"tools.{name}.") for name, table in tables.items()}
    settings = msgspec.structs.replace(_convert(read, RiskSettings, ""), tools=profiles)
    for pattern in (*settings.allow, *settings.deny):
        if not pattern or pattern.count("*") > 1:
            raise Fault("EINVAL", f"{FILE}: {pattern!r} is no pattern; it is a name with at most one *")
    return settings


def _convert(table: Any, type_: type[Of], at: str) -> Of:
    known = {field.name: field.type for field in msgspec.structs.fields(type_)}
    for key in table if isinstance(table, dict) else ():
        if key not in known:
            raise Fault("EINVAL", f"{FILE}: unknown key {at}{key}; known are {', '.join(known)}")
    try:
        return msgspec.convert(table, type_)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        words = WORDS.get(where.rstrip("`"))
        said = f"expected one of {', '.join(words)}" if words else f"{what[:1].lower()}{what[1:]}"
        raise Fault("EINVAL", f"{FILE}: {at}{where.rstrip('`')}: {said}") from None


def matches(pattern: str, name: str) -> bool:
    """Returns True if `name` is the pattern, whose one `*` stands for anything."""
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
