"""The problems of a manifest.json: the one table of categories, the sentence of a problem, and the check of
keys and JSON types against fields.py.

Rules: an error refuses the manifest, a warning does not. Every problem has a JSON path, a fault and a remedy.
All problems are found, not only the first. An unknown key is a warning, so that manifests for later versions
load. No type takes null.
This file must never know a rule, or what a field means.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from cortexfs.core import jsontext
from cortexfs.core.jsontext import nearest

# A manifest with one of these is refused.
ERRORS = {
    "invalid_json": "the file is not one JSON object of at most 1 MiB",
    "too_many_problems": "there are too many problems to list",
    "missing_field": "a required key is missing",
    "wrong_type": "a value has a wrong JSON type for its key",
    "invalid_value": "a value is not one of those that its key takes",
    "invalid_name": "a name is not kebab-case, or cannot stand in a path or on a command line",
    "duplicate_name": "a name that must be unique is used twice",
    "invalid_version": "the version is not MAJOR.MINOR.PATCH",
    "invalid_description": "the description is empty or not one line",
    "invalid_kind": "the kind is not one of esm, mcp, wasm",
    "invalid_runtime": "the runtime is not one of deno, wasm",
    "kind_runtime_mismatch": "this kind does not run in this runtime",
    "invalid_entry_point": "the entry point is neither a file of the package nor a URL for this kind",
    "invalid_path": "a path leaves the package",
    "unknown_capability": "a capability is unknown",
    "duplicate_capability": "a capability is declared twice",
    "missing_capability": "something is contributed without the capability for it",
    "events_without_capability": "events are listed without events:listener",
    "unknown_event": "an event is unknown",
    "invalid_dependency": "a dependency's name or range cannot be read, or is the plugin itself",
    "invalid_hash": "the hash is not sha256: and 64 hexadecimal digits",
    "invalid_signature": "the signature is not base64",
}
# A manifest with one of these loads.
WARNINGS = {
    "unknown_key": "a key is unknown and is ignored",
    "missing_default": "a field of the settings has no defaultValue",
    "wrong_default": "a default does not fit the type of its setting and is ignored",
    "settings_without_capability": "there are settings without config:schema",
    "reserved_capability": "a capability is reserved and grants nothing yet",
    "not_spdx": "the license is not an SPDX identifier",
    "not_a_url": "a homepage or repository is not a URL",
}


class Problem(msgspec.Struct, frozen=True):
    category: str
    path: str  # capabilities[2], ui.settings[0].fields; empty: the whole file
    fault: str
    mend: str

    @property
    def is_error(self) -> bool:
        return self.category in ERRORS

    def sentence(self, file: str) -> str:
        """Returns one sentence with file, field, fault and remedy."""
        place = f"{file}: {self.path}" if self.path else file
        return f"{place}: {self.fault}; {self.mend}"


_JSON_TYPES: dict[type[inspect.Type], tuple[type[Any], str]] = {
    inspect.StructType: (dict, "an object"),
    inspect.DictType: (dict, "an object"),
    inspect.VarTupleType: (list, "an array"),
    inspect.StrType: (str, "a string"),
    inspect.LiteralType: (str, "a string"),
    inspect.BoolType: (bool, "true or false"),
}
_CATEGORIES = {"kind": "invalid_kind", "runtime": "invalid_runtime"}  # for a word that is not in the list

type_of = cache(inspect.type_info)


def of_shape(value: Any, type_: inspect.Type, path: str = "") -> Iterator[Problem]:
    """Yields the problems of a value that is not of that type."""
    if isinstance(type_, inspect.UnionType):  # str | None: None stands for a missing key alone
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
            yield from of_shape(item, type_.item_type, f"{path}[{index}]")
    elif isinstance(type_, inspect.DictType):
        for key, item in value.items():
            yield from of_shape(item, type_.value_type, below(path, key))
    elif isinstance(type_, inspect.LiteralType) and value not in type_.values:
        known = [str(choice) for choice in type_.values]
        mend = f"write one of {', '.join(known)}{nearest(value, known)}"
        yield Problem(_CATEGORIES.get(path, "invalid_value"), path, f"is {jsontext.shown(value)}", mend)


def _members(value: dict[str, Any], type_: inspect.StructType, path: str) -> Iterator[Problem]:
    fields = {field.encode_name: field for field in type_.fields}
    for name, field in fields.items():
        if name in value:
            yield from of_shape(value[name], field.type, below(path, name))
        elif field.required:
            yield Problem("missing_field", below(path, name), "is missing", "add it: it is required")
    for key in value:
        if key not in fields:
            mend = f"it is ignored{nearest(key, fields)}"
            yield Problem("unknown_key", below(path, key), "is an unknown key", mend)


def below(path: str, key: str) -> str:
    return jsontext.path_text([key], path)
