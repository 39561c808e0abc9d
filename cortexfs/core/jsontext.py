"""JSON from outside, bounded before it is trusted, and the wording of its faults.

Rules: whatever bytes come in, a value or a `Fault` comes out. A value that is deeper than MAX_DEPTH, or has a
number that 64 bits cannot hold, is refused here. So it brings down no later reader: a validator, another
language's parser, the encoder of a frame. Of duplicate keys the last one counts.
This file must never know what a schema, an argument or a tool is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from cortexfs.core.errors import Fault

ROOT = "input"
# The exceptions of msgspec for unexpected bytes: UTF-8 and depth have exceptions of their own.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# serde_json stops at 128 levels, so a native plugin could not read more; a frame adds a few of its own.
MAX_DEPTH = 100
# The integers that i64 or u64 can hold. Other integers are different numbers in different languages.
INTEGERS = range(-(1 << 63), 1 << 64)

_LONG_NUMBER = re.compile(rb"\d{19}")
# CPython refuses to read integers this long, and msgspec then reports no path.
_UNREADABLE = re.compile(rb"(?<![\d.])\d{400,}")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]{1,60}", re.ASCII)
# The way of a walk to a value: the way to its container, and the key or index in it.
_Way: TypeAlias = "tuple[_Way, str | int] | None"

_ANY: Mapping[str, Iterable[str]] = MappingProxyType({})
LONGEST_NAME = 100  # a longer name is compared with no others: difflib's cost is quadratic
_MAX_QUOTE = 60  # characters of a value that a message quotes
_SENTENCE = 500  # characters of a message: a frame has 1 MiB, a reader less

_WORDS = {"str": "string", "int": "number", "float": "number", "bool": "boolean"}
_TYPES = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}


def type_name(value: object) -> str:
    """Returns the JSON name of a value's type."""
    return "null" if value is None else _TYPES.get(type(value), type(value).__name__)


def shown(value: object, limit: int = _MAX_QUOTE) -> str:
    """Returns a value as JSON, short enough for a sentence."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return type_name(value)
    return clipped(text, limit)


def why_unread(error: Exception) -> str:
    """Returns why bytes could not be read as JSON of some type, without Python's names of types."""
    # msgspec raises an error of its own since 0.23.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Invalid UTF-8"):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if type(error) is ValueError:  # CPython raises it for long integers
        return "a number in it is too long"
    return " ".join(str(error).split())[:_SENTENCE]


def clipped(text: str, limit: int = _SENTENCE) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a phrase that offers the likely name, or nothing."""
    from difflib import get_close_matches  # imported here, so that only mistakes pay for it

    if len(name) > LONGEST_NAME:
        return ""
    found = get_close_matches(name.replace("-", "_").lower(), list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def path_text(path: Iterable[str | int], root: str = "") -> str:
    """Returns a path as text, such as items[2].name. The root itself is called input."""
    text = root
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{shown(step)}]"
    return text or ROOT


def decode(data: bytes | str, root: str = "") -> Any:
    """Returns the one JSON value of `data`. Raises EINVAL with what was found and where."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep(root) from None
    except msgspec.ValidationError:
        raise _number_fault(raw, root) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = why_unread(error).removeprefix("JSON is malformed: ")
        raise Fault("EINVAL", f"{path_text((), root)}: is not one JSON value: {reason}") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        check_depth(value, root)
    if _LONG_NUMBER.search(raw):
        _check_numbers(value, root)
    return value


def json_object(data: bytes) -> dict[str, Any]:
    """Returns the JSON object of `data`. No data, or white space, is the empty object."""
    if not data.strip():
        return {}
    value = decode(data)
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"{ROOT}: expected object, got {type_name(value)}")
    return value


def converted(
    value: Any, type_: Any, root: str = "", whole: str = ROOT, choices: Mapping[str, Iterable[str]] = _ANY
) -> Any:
    """Returns a decoded value as `type_`. Raises EINVAL with the path of the wrong part, or with `whole`."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise Fault("EINVAL", _sentence(str(error), root, whole, choices)) from None


def _sentence(error: str, root: str, whole: str, choices: Mapping[str, Iterable[str]]) -> str:
    """Returns msgspec's message with the path first, and with JSON's words for Python's."""
    text, _, path = error.partition(" - at `$")
    path = f"{root}{path.removesuffix('`')}".removeprefix(".")
    if path in choices:
        return f"{path}: expected one of {', '.join(choices[path])}"
    text = text.replace(" | null", "").replace("`", "").replace(" | ", " or ")
    text = re.sub(r"\b(str|int|float|bool)\b", lambda word: _WORDS[word[0]], text)
    return f"{path or whole}: {text[:1].lower()}{text[1:]}"


def check_depth(value: object, root: str = "", limit: int = MAX_DEPTH) -> None:
    """Refuse containers nested in more than `limit` levels. Walks level by level, without recursion."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        if not level:
            return
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    if level:
        raise _too_deep(root, limit)


def check_integer(number: int, path: str) -> int:
    if number not in INTEGERS:
        raise Fault("EINVAL", f"{path}: is an integer that 64 bits cannot hold; use a smaller one")
    return number


def check_float(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise Fault("EINVAL", f"{path}: is out of the range of numbers; use one that a double can hold")
    return number


def _too_deep(root: str, limit: int = MAX_DEPTH) -> Fault:
    return Fault("EINVAL", f"{path_text((), root)}: is nested in more than {limit} levels")


def _number_fault(raw: bytes, root: str) -> Fault:
    """Returns the fault that names the number at which msgspec gave up. Decodes with infinities there."""
    try:
        value = msgspec.json.Decoder(float_hook=float).decode(_UNREADABLE.sub(b"1e999", raw))
        _check_numbers(value, root)
    except Fault as fault:
        return fault
    except UNREADABLE:
        pass  # there is another fault after the number
    return Fault("EINVAL", f"{path_text((), root)}: holds a number that is out of range")


def _check_numbers(value: object, root: str) -> None:
    """Refuse numbers that 64 bits cannot hold. Only the path of a refused number is made into text."""
    pending: list[tuple[Any, _Way]] = [([value], None)]
    while pending:
        node, way = pending.pop()
        for step, child in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(child, dict | list):
                pending.append((child, (way, step)))
            elif isinstance(child, int):
                if child not in INTEGERS:
                    check_integer(child, _path_of((way, step), root))
            elif isinstance(child, float) and not math.isfinite(child):
                check_float(child, _path_of((way, step), root))


def _path_of(way: _Way, root: str) -> str:
    steps = []
    while way:
        way, step = way
        steps.append(step)
    return path_text(steps[-2::-1], root)  # the first step led to the value itself
