"""A call's input as a text to be edited, and what the edited text is as an input.

This file must never know terminals.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from cortexfs.core import jsontext, safe_text
from cortexfs.core.errors import Fault


def text(value: Any) -> str:
    """As JSON with a line for each part; what would not be seen is written as JSON escapes it."""
    return safe_text.escaped(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), _written)


def _written(char: str) -> str:
    return json.dumps(char)[1:-1]


def edited(given: str) -> dict[str, Any]:
    """The input that a text is; EINVAL where it is none."""
    value = jsontext.decode(given, "what you wrote")
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"what you wrote: expected a JSON object, got {jsontext.type_name(value)}")
    return value
