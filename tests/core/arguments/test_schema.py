"""The required names of a schema that are no properties."""

from __future__ import annotations

from typing import Any

from cortexfs.core.arguments.schema import unknown_required
from tests.tables import each_of

HOW: dict[str, Any] = {"properties": {"how": {}}}
WRONG = HOW | {"required": ["hwo"]}


@each_of(
    ("schema", "names"),
    [
        ({}, []),
        (HOW | {"required": ["how"]}, []),
        (WRONG, ["hwo"]),
        ({"required": ["a", 1, "b", "a"]}, ["a", "b"]),
        (WRONG | {"additionalProperties": False}, ["hwo"]),
        (WRONG | {"additionalProperties": True}, []),
        (WRONG | {"additionalProperties": {"type": "string"}}, []),
        (WRONG | {"patternProperties": {"^h": {}}}, []),
        ({"allOf": [HOW, {"required": ["how", "hwo"]}]}, ["hwo"]),
        (HOW | {"anyOf": [{"required": ["hwo"]}, {"required": ["how"]}]}, ["hwo"]),
        ({"$ref": "#/$defs/it", "$defs": {"it": WRONG}}, ["hwo"]),
    ],
)
def test_unknown_required_names(schema: dict[str, Any], names: list[str]) -> None:
    assert unknown_required(schema) == names
