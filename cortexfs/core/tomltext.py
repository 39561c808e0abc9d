"""Reads TOML that people write as values of a type, and writes values as TOML.

Rules: whatever bytes come in, a value or a `Fault` comes out. The fault names the file and the key. An
unknown key is refused with the nearest known key, so that no misspelt key is silently without effect.
This file must never know where a file lies, or what a key means.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import check_depth, nearest, shown

T = TypeVar("T")

_WORDS = {"str": "string", "int": "integer", "bool": "boolean", "object": "table", "None": "nothing"}
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
# tomllib takes memory for each key by the square of the number of its parts: a MiB of "a.a.a" takes a TiB.
_MAX_PARTS = 64
_LONG_KEY = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{_MAX_PARTS}}}", re.ASCII)
# Without possessive groups, which Python 3.11 matches wrongly.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*"{3,5}|"(?:[^"\\\n]++|\\[^\n])*"|'''
    r"""'''(?:[^']++|'(?!''))*'{3,5}|'[^'\n]*+'|\#[^\n]*""",
    re.DOTALL,
)


def _outlined(found: re.Match[str]) -> str:
    """Returns a string as a word, which may be a part of a key, and a comment as nothing."""
    return "" if found[0].startswith("#") else "s"


def table(data: bytes, where: str) -> dict[str, Any]:
    """Returns a TOML text as a table. Raises a Fault that begins with `where`."""
    try:
        # The line ends of Windows are TOML. The mark that its editors write first is not, and is removed.
        text = data.decode().removeprefix("\ufeff")
        if not _LONG_KEY.search(_STRING_OR_COMMENT.sub(_outlined, text)):
            return tomllib.loads(text)
        reason = f"nested too deeply: a key has over {_MAX_PARTS} parts"
    except UnicodeDecodeError as problem:
        reason = f"not UTF-8, from byte {problem.start} on"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as problem:  # also for integers that are too long
        reason = f"not TOML: {problem}"
    raise Fault("EINVAL", f"{where}: it is {reason}")


def converted(value: Mapping[str, Any], type_: type[T], where: str, above: str = "") -> T:
    """Returns a table as `type_`. Raises a Fault with the key, which `above` precedes."""
    try:
        check_depth(value, "it")
        return msgspec.convert(value, type_)
    except Fault as fault:
        raise Fault("EINVAL", f"{where}: {fault.message}") from None
    except msgspec.ValidationError as error:
        raise Fault("EINVAL", f"{where}: {_sentence(str(error), type_, above)}") from None


def _sentence(error: str, type_: type[Any], above: str) -> str:
    """Returns msgspec's message in the words of TOML, with the key first and a remedy at the end."""
    text, _, path = error.partition(" - at `$")
    path = path.removesuffix("`").replace("[...]", ".NAME").removeprefix(".")  # [...]: a key of a mapping
    key, leaf_type = f"{above}.{path}".strip("."), _type_at(type_, path)
    if unknown := re.search(r"unknown field `(.*)`", text, re.DOTALL):
        known = leaf_type.__struct_fields__
        mend = nearest(unknown[1], known) or f"; known are {', '.join(known)}"
        return f"unknown key {f'{key}.{shown(unknown[1])[1:-1]}'.strip('.')}{mend}"
    if missing := re.search(r"missing required field `(.*)`", text):
        return f"missing key {f'{key}.{missing[1]}'.strip('.')}; it is required"
    is_choice = get_origin(leaf_type) is Union and not path.endswith("]")  # and no item of a list
    parts = get_args(leaf_type) if is_choice else (leaf_type,)
    if get_origin(parts[0]) is Literal:
        alternative = ", or a list" * (len(parts) > 1)  # the only type that our Unions have beside a Literal
        return f"{key}: expected one of {', '.join(get_args(parts[0]))}{alternative}"
    text = text.replace(" | null", "").replace("Expected `float`", "Expected `number`").replace("`", "")
    text = re.sub(r"\b(str|int|bool|object|None)\b", lambda word: _WORDS[word[0]], text)
    return f"{key or 'it'}: {text[:1].lower()}{text[1:]}"


def _type_at(type_: Any, path: str) -> Any:
    """Returns the type of the value at a path, without its bounds and without None. Reads annotations, as
    msgspec.inspect has the words of a Literal in another order."""
    steps = _STEP.findall(path)
    while True:
        kind, parts = get_origin(type_), get_args(type_)
        if kind is Annotated or (len(parts) == 2 and parts[1] is NoneType):
            type_ = parts[0]
        elif not steps or kind not in (None, dict, tuple):
            return type_
        else:
            step = steps.pop(0)
            fields = [] if kind else msgspec.structs.fields(type_)
            type_ = (
                parts[kind is dict] if kind else next(field.type for field in fields if field.name == step)
            )


def written(value: Any) -> str:
    """Returns a value as TOML. Its strings are those of JSON, except for DEL."""
    if isinstance(value, dict):
        return f"{{{', '.join(lines(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def lines(fields: Mapping[str, Any]) -> list[str]:
    """Returns a line for each key. Keys with the value None are left out."""
    return [
        f"{key if _BARE_KEY.fullmatch(key) else written(key)} = {written(value)}"
        for key, value in fields.items()
        if value is not None
    ]
