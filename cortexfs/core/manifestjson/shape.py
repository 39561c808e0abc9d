"""The check of a JSON value for the keys and JSON types of a manifest: the walk over fields.py.

Rules: every problem is found, not only the first. An unknown key is a warning, so that manifests written
for later versions load; null is no value of any type.
This file must never know what a field means.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

from cortexfs.core import jsontext
from cortexfs.core.arguments.parse import nearest
from cortexfs.core.manifestjson.problems import Problem

_JSON_TYPES: dict[type[inspect.Type], tuple[type[Any], str]] = {
    inspect.StructType: (dict, "an object"),
    inspect.DictType: (dict, "an object"),
    inspect.VarTupleType: (list, "an array"),
    inspect.StrType: (str, "a string"),
    inspect.LiteralType: (str, "a string"),
    inspect.BoolType: (bool, "true or false"),
}
_CATEGORIES = {"kind": "invalid_kind", "runtime": "invalid_runtime"}  # of a word that is not in the list

type_of = cache(inspect.type_info)


def problems(value: Any, type_: inspect.Type, path: str = "") -> Iterator[Problem]:
    """Where `value` is not of that type."""
    if isinstance(type_, inspect.UnionType):  # str | None: None only says that the key is not there
        type_ = type_.types[0]
    if isinstance(type_, inspect.AnyType):
        return
    json_type, word = _JSON_TYPES[type(type_)]
    if not isinstance(value, json_type):
        yield Problem("wrong_type", path, f"is {jsontext.shown(value)}", f"write {word}")
    elif isinstance(type_, inspect.StructType):
        yield from _members(value, type_, path)
    elif isinstance(type_, inspect.VarTupleType):
        for index, item in enumerate(value):
            yield from problems(item, type_.item_type, f"{path}[{index}]")
    elif isinstance(type_, inspect.DictType):
        for key, item in value.items():
            yield from problems(item, type_.value_type, below(path, key))
    elif isinstance(type_, inspect.LiteralType) and value not in type_.values:
        known = [str(one) for one in type_.values]
        mend = f"write one of {', '.join(known)}{nearest(value, known)}"
        yield Problem(_CATEGORIES.get(path, "invalid_value"), path, f"is {jsontext.shown(value)}", mend)


def _members(value: dict[str, Any], type_: inspect.StructType, path: str) -> Iterator[Problem]:
    fields = {field.encode_name: field for field in type_.fields}
    for name, field in fields.items():
        if name in value:
            yield from problems(value[name], field.type, below(path, name))
        elif field.required:
            yield Problem("missing_field", below(path, name), "is missing", "add it: it is required")
    for key in value:
        if key not in fields:
            mend = f"it is ignored{nearest(key, fields)}"
            yield Problem("unknown_key", below(path, key), "is no key that is known here", mend)


def below(path: str, key: str) -> str:
    return jsontext.path_text([key], path)
