"""A model of a provider with the values of its controls now, from which a request is made.

Rules: an entry is made for each run, so that a changed control counts for the next run. It never holds
a key.
This file must never know how a request looks, or which provider answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE

if TYPE_CHECKING:
    from cortexfs.core.registry import Object

PROVIDER = "provider:"  # the origin of a provider's model begins so
EFFORTS = ("low", "medium", "high", "xhigh")


class ModelEntry(msgspec.Struct, frozen=True):
    name: str  # provider/model, as the tree has it
    id: str  # the provider's name of the model
    limit: int | None = None  # tokens; None: unknown
    default: dict[str, Any] = {}
    effort: str = "auto"
    system: str = ""  # for questions without a system prompt


def model_of(object_: Object, control: Callable[[Object, str], str]) -> ModelEntry:
    text = {name: control(object_, name) for name in ("id", "limit", "default", "effort")}
    limit, default = text["limit"].strip(), parameters(text["default"])
    system = default.pop("system", "")  # no parameter of a provider: each format has its own place for it
    return ModelEntry(
        name=object_.name,
        id=text["id"].rstrip("\n"),
        limit=int(limit) if limit.isdecimal() else None,
        default=default,
        effort=text["effort"].strip() or "auto",
        system=system if isinstance(system, str) else _text(system),
    )


def provider_of(object_: Object) -> str:
    """Returns the name of the provider that serves the model, or "" if none does."""
    return object_.origin.removeprefix(PROVIDER) if object_.origin.startswith(PROVIDER) else ""


def parameters(text: str) -> dict[str, Any]:
    """Returns KEY=VALUE lines as parameters. A value that is valid JSON is decoded; any other is text."""
    pairs = (line.partition("=") for line in text.split("\n") if line.strip())
    return {key: _value(value) for key, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return text


def written(default: dict[str, Any]) -> str:
    """Returns parameters as KEY=VALUE lines. A text that would be read as JSON is written as JSON."""
    return "\n".join(f"{key}={_text(value)}" for key, value in default.items())


def _text(value: Any) -> str:
    plain = isinstance(value, str) and "\n" not in value and _value(value) == value
    return value if plain else msgspec.json.encode(value).decode()


class NoAnswer(Fault):
    """No part of an answer was sent, and another model may succeed: the reason for a fallback."""
