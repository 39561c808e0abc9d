"""A tool of a manifest.json or of its module: its input as a JSON Schema, its result as a value.

Rules: what a plugin's code answers is checked like anything from outside.
This file must never know how a tool is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.fields import ToolParam


class JsonToolResult(msgspec.Struct, frozen=True, rename="camel"):
    tool_name: str  # must be the tool's own
    success: bool
    output: str
    duration_ms: float
    error: str | None = None


def input_schema(params: Sequence[ToolParam]) -> dict[str, Any]:
    """Returns the schema of the tool's arguments: its params and no others, so that a misspelt one is
    told."""
    return {
        "type": "object",
        "properties": {param.name: _property(param) for param in params},
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }


def _property(param: ToolParam) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": param.type, "description": param.description}
    return schema | {"enum": list(param.enum)} if param.enum else schema


def tool_result(value: Any, tool: str) -> JsonToolResult:
    """Returns the result of a tool's execute; raises EPROTO, with the plugin's fault, if it is none of
    this tool's."""
    try:
        result: JsonToolResult = jsontext.converted(value, JsonToolResult, whole="result")
    except Fault as fault:
        raise Fault("EPROTO", f"the tool {tool} returned no ToolCallResult: {fault.message}") from None
    if result.tool_name != tool:
        raise Fault("EPROTO", f"the tool {tool} returned a result of {jsontext.shown(result.tool_name)}")
    return result
