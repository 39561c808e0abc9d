"""Structured output: an answer is JSON that fits a schema, or a fault.

Rules: a wrong schema is EINVAL before the request is sent; an answer that does not fit is EBADMSG.
References outside the schema are never fetched, and a pattern stops after a bounded number of steps.
This file must never know which model answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, check_depth, clipped, path_text

MAX_DEPTH = 200  # jsonschema-rs stops at 255 levels
BACKTRACKS = 100_000


class Schema:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            check_depth(schema, "schema", MAX_DEPTH)
            self._compiled = jsonschema_rs.validator_for(
                dict(schema),
                offline=True,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS),
            )
        except (ValueError, TypeError, RecursionError, jsonschema_rs.ReferencingError) as error:
            why = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
            raise Fault("EINVAL", clipped(f"schema: {why}")) from None

    def check(self, text: str) -> None:
        """Raises EBADMSG unless the text is JSON that fits the schema."""
        try:
            value = msgspec.json.decode(text)
        except UNREADABLE as error:
            why = str(error).partition(" (")[0]
            raise Fault("EBADMSG", f"the model's answer is not JSON: {why}") from None
        try:
            self._compiled.validate(value)
        except jsonschema_rs.ValidationError as error:
            where = path_text(error.instance_path) if error.instance_path else "the answer"
            why = clipped(f"{where}: {error.message}")
            raise Fault("EBADMSG", f"the model's answer does not fit the schema: {why}") from None


def is_strict(schema: Any) -> bool:
    """Returns True if OpenAI's strict mode takes the schema: each object closed, each property required.
    Any other schema is sent as a hint, and the answer is checked here."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        names = set(properties) if isinstance(properties, dict) else set()
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if names != {name for name in required if isinstance(name, str)}:
            return False
    return all(map(is_strict, schema.values()))
