"""A model of a provider, as its controls say now: what a request is made from.

Rules: it is made anew for each run, so that a changed control counts for the next one. It never holds
a key.
This file must never know how a request looks, or who answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE

if TYPE_CHECKING:
    from cortexfs.core.registry import Object

PROVIDER = "provider:"  # how the origin of a provider's model begins
EFFORTS = ("low", "medium", "high", "xhigh")


class ModelEntry(msgspec.Struct, frozen=True):
    name: str  # provider/model, as the tree has it
    id: str  # as the provider calls it
    limit: int | None = None  # tokens; None: unknown
    default: dict[str, Any] = {}
    effort: str = "auto"
    system: str = ""  # for questions that have none


def model_of(object_: Object, control: Callable[[Object, str], str]) -> ModelEntry:
    text = {name: control(object_, name) for name in ("id", "limit", "default", "effort")}
    limit, default = text["limit"].strip(), parameters(text["default"])
    system = default.pop("system", "")  # no provider's parameter: where it stands is the format's affair
    return ModelEntry(
        name=object_.name,
        id=text["id"].rstrip("\n"),
        limit=int(limit) if limit.isdecimal() else None,
        default=default,
        effort=text["effort"].strip() or "auto",
        system=system if isinstance(system, str) else _text(system),
    )


def provider_of(object_: Object) -> str:
    """The name of the provider that serves it; empty when none does."""
    return object_.origin.removeprefix(PROVIDER) if object_.origin.startswith(PROVIDER) else ""


def parameters(text: str) -> dict[str, Any]:
    """KEY=VALUE lines as parameters: a value that is JSON is meant as such, others are text."""
    pairs = (line.partition("=") for line in text.split("\n") if line.strip())
    return {key: _value(value) for key, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return text


def written(default: dict[str, Any]) -> str:
    """Parameters as KEY=VALUE lines; a text that would be read as JSON is written as JSON."""
    return "\n".join(f"{key}={_text(value)}" for key, value in default.items())


def _text(value: Any) -> str:
    plain = isinstance(value, str) and "\n" not in value and _value(value) == value
    return value if plain else msgspec.json.encode(value).decode()


class NoAnswer(Fault):
    """Nothing was said, and another model may do better: the reason for a fallback."""
