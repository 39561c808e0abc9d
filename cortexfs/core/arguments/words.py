"""One word of a command line, turned into a value that a schema allows in its place.

A property that allows
    string only       takes the word as it stands
    other types only  takes the JSON of one of them (a boolean also yes, no, 1 or 0)
    both              takes a string, unless the word is exactly the JSON of another allowed value:
                      5 but not 05 or 1.10, true, [1]. It is never null: leave the property out instead.
With enum or const, the word is the text or the JSON of one of the values.
An array takes its JSON if the word begins with `[`, else the word as its one element. An object takes JSON. A
word that fits no allowed type is EINVAL. The rest of the schema is checked later.
This file must never know where a word came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from cortexfs.core.arguments.schema import Shape, ValueKind
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import check_float, check_integer, decode, path_text, shown

BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
# Characters. No integer of 64 bits is longer, and int() of a million digits would be slow.
_LONGEST_INTEGER = 20
_JSON_SPACE = " \t\r\n"


class _Nothing:
    """The answer of a reader to a word of another type."""


_NOTHING = _Nothing()


def value_of(word: str, kind: ValueKind, shape: Shape, path: str, element: bool = False) -> Any:
    """Returns the one value of `word`. An element of an array becomes an array only with brackets."""
    for choice in kind.choices:
        if choice == word or (not isinstance(choice, str) and _json(choice) == word):
            return choice
    if kind.types == {"string"}:
        return word
    if "string" in kind.types:
        return _string_or_other(word, kind, shape, path)
    text = word.strip(_JSON_SPACE)
    for name, read in _READERS.items():
        if name in kind.types and not isinstance(value := read(text, path), _Nothing):
            return value
    if "array" in kind.types and not element:
        return elements_of(word, kind, shape, path)
    expected = " or ".join(sorted(kind.types))
    raise Fault("EINVAL", f"{path}: expected {expected}, got {shown(word)}")


def elements_of(word: str, kind: ValueKind, shape: Shape, path: str, start: int = 0) -> list[Any]:
    """Returns the elements that `word` adds to an array with `start` elements."""
    inner = shape.items(kind)
    if not word.lstrip(_JSON_SPACE).startswith("["):
        return [value_of(word, inner, shape, path_text((start,), path), element=True)]
    values = decode(word, path)
    assert isinstance(values, list)  # the word begins with [, and is JSON
    # In an array of arrays, [1,2] is one element, and [[1,2],[3]] is two.
    if inner.types == {"array"} and not all(isinstance(value, list) for value in values):
        return [values]
    return values


def _string_or_other(word: str, kind: ValueKind, shape: Shape, path: str) -> Any:
    try:
        for name, read in _READERS.items():
            if name in kind.types and name != "null":
                value = read(word, path)
                if isinstance(value, dict) or (not isinstance(value, _Nothing) and _json(value) == word):
                    return value
        if "array" in kind.types and word.startswith("["):
            return elements_of(word, kind, shape, path)
    except Fault:
        pass  # the word is not JSON of another type, so it is a string
    return word


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _null(word: str, path: str) -> _Nothing | None:
    return None if word == "null" else _NOTHING


def _boolean(word: str, path: str) -> bool | _Nothing:
    return BOOLEANS.get(word, _NOTHING)


def _integer(word: str, path: str) -> int | _Nothing:
    if not _INTEGER.fullmatch(word):
        return _NOTHING
    is_too_long = len(word) > _LONGEST_INTEGER
    return check_integer(1 << 64 if is_too_long else int(word), path)


def _number(word: str, path: str) -> float | _Nothing:
    if _INTEGER.fullmatch(word):
        return _integer(word, path)
    return check_float(float(word), path) if _NUMBER.fullmatch(word) else _NOTHING


def _object(word: str, path: str) -> dict[str, Any] | _Nothing:
    if not word.startswith("{"):
        return _NOTHING
    value: dict[str, Any] = decode(word, path)
    return value


# The order counts: 1 is read as an integer before it can be read as a boolean.
_READERS: dict[str, Callable[[str, str], Any]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
}
