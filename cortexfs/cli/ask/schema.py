"""The schema of an answer, as a person writes it: JSON, or the concise form of the program llm.

    concise("name, age int, bio: in one sentence")

Rules: line ends separate fields if there are any, and else commas, so that a description may have commas.
Every field is required and there are no others: providers can hold a model to such a schema.
This file must never know files.
"""

from __future__ import annotations

from typing import Any

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault

TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def read(text: str) -> dict[str, Any]:
    """Returns the schema that the text means, in either form."""
    if not text.lstrip().startswith("{"):
        return concise(text)
    schema: dict[str, Any] = jsontext.decode(text, "--schema")
    return schema


def concise(text: str) -> dict[str, Any]:
    fields = [each for part in text.split("\n" if "\n" in text.strip() else ",") if (each := part.strip())]
    properties = dict(map(_field, fields))
    if not properties:
        raise Fault("EINVAL", "--schema: names no field; write name, age int")
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _field(text: str) -> tuple[str, dict[str, str]]:
    head, _, description = text.partition(":")
    words = head.split()
    if not 1 <= len(words) <= 2 or (type_ := words[1] if words[1:] else "str") not in TYPES:
        why = f"{jsontext.shown(text)} is not NAME TYPE: DESCRIPTION; types are {', '.join(TYPES)}"
        raise Fault("EINVAL", f"--schema: {why}")
    field = {"type": TYPES[type_]}
    return words[0], field | ({"description": description.strip()} if description.strip() else {})
