"""The request for a dry run: a word among the arguments of a call, or, in a model's call, a property of the
input that the tool never sees.

Rules: if the tool's own input has a property of such a name, neither asks for a dry run. A tool opts in by
the `dry_run_flag` of its descriptor. The `dry_run` of an effect only describes: a dry run without the flag is
refused. Daemon and host use the same functions, as a dry run may be allowed more than a call.
This file must never know whether a dry run is needed (core/policy/confirming.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cortexfs.core.errors import Fault

OPTION = b"--dry-run"
PROPERTY = "dry_run"
_NAMES = ("dry-run", PROPERTY)
_MEANS = {"type": "boolean", "description": "Say what the call would do, and do nothing."}


def is_offered(flag: bool, schema: Mapping[str, Any]) -> bool:
    """Returns True if a tool with this `dry_run_flag` and schema has dry runs."""
    return flag and not is_taken(schema)


def lacking(name: str, word: str = OPTION.decode()) -> str:
    """Returns the sentence that refuses a dry run of a tool that has not opted in."""
    return f"{name} has no dry run, even if its effects declare one. Nothing was run; call it without {word}"


def is_taken(schema: Mapping[str, Any]) -> bool:
    """Returns True if the tool's own input has a property of such a name."""
    properties = schema.get("properties")
    return isinstance(properties, dict) and any(name in properties for name in _NAMES)


def is_among(words: Sequence[bytes]) -> bool:
    """Returns True if OPTION is among the words, before any `--`."""
    return OPTION in words[: words.index(b"--") if b"--" in words else len(words)]


def without(words: Sequence[bytes]) -> list[bytes]:
    end = words.index(b"--") if b"--" in words else len(words)
    return [*(word for word in words[:end] if word != OPTION), *words[end:]]


def shown(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema that a model sees of a tool with dry runs."""
    properties = schema.get("properties")
    own = properties if isinstance(properties, dict) else {}
    return {**schema, "properties": {**own, PROPERTY: _MEANS}}


def parted(input: Any) -> tuple[Any, bool]:
    """Returns a model's input without the property, and the property's value. Raises EINVAL if that is no
    boolean, as a call that was meant to be a dry run must not happen."""
    if not isinstance(input, dict) or PROPERTY not in input:
        return input, False
    flag = input[PROPERTY]
    if not isinstance(flag, bool):
        raise Fault("EINVAL", f"{PROPERTY}: expected boolean; nothing was run")
    return {name: value for name, value in input.items() if name != PROPERTY}, flag
