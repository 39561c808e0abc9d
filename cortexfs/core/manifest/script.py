"""A script that is a tool: the facts in the comment at its top, and the words of an input.

    #!/bin/sh
    # tool: Greet somebody, when they arrive.
    # arg who string: whom
    # arg times? integer = 1: how often
    # flag loud: in capitals

The grammar is that of abi.md 12.1 to 12.7. Rules: this comment, the *header*, is untrusted input: it must be
short and printable, and a fault quotes the wrong line.
This file must never know where a script lies, which users may run it, or how it is run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from cortexfs.core import hostcalls, names
from cortexfs.core.arguments.parse import tool_input
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import Confirmation, EffectKind

MAX_HEADER = 16 << 10
MAX_ARGUMENTS = 64
MAX_SECONDS = 604_800  # a week, as for limits in config.toml

_COMMENT = re.compile(r"\s*(?:#|//|--)\s?(.*)", re.DOTALL)
_FACT = re.compile(r"(tool|name|timeout|effect)\s*:\s*(.*)")
_ARGUMENT = re.compile(
    r"(arg|flag)\s+([A-Za-z_][A-Za-z0-9_-]{0,63})(\?|\.\.\.)?"  # NAME?, NAME...
    r"(?:\s+([^\s=:]+))?(?:\s*=\s*(.*?))?\s*:(?:\s+(.*))?"  # TYPE = DEFAULT: text
)
_FORMS = {
    "arg": "arg NAME[?|...] TYPE [= DEFAULT]: text",
    "flag": "flag NAME[...] [TYPE [= DEFAULT]]: text",
    "effect": f"effect: KIND [TARGET [never|on_risk|always]], with one of {', '.join(get_args(EffectKind))}",
    "timeout": f"timeout: SECONDS, from 1 to {MAX_SECONDS}",
}
_SHORT = {"str": "string", "path": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPES = _SHORT | {name: name for name in _SHORT.values()}
_NUMBER = re.compile(r"-(?:[0-9.]+(?:e[+-]?[0-9]+)?)?")


class ScriptArgument(NamedTuple):
    name: str
    is_flag: bool
    schema: dict[str, Any]
    is_required: bool


class Script(NamedTuple):
    """The facts in a header."""

    name: str = ""  # empty: the name of the file
    description: str = ""
    arguments: tuple[ScriptArgument, ...] = ()
    effects: tuple[hostcalls.Effect, ...] = ()
    timeout: int | None = None

    @property
    def schema(self) -> dict[str, Any]:
        return _schema(self.arguments)

    def words(self, value: Mapping[str, Any]) -> list[str]:
        """Returns the words for the script: flags first, then other arguments in their order. An argument
        that is left out is the empty word before the last one that is set, and no word after that."""
        flags: list[str] = []
        positional: list[list[str]] = []
        for argument in self.arguments:
            item = value.get(argument.name, argument.schema.get("default"))
            if not argument.is_flag:
                positional.append(_words(item))
            elif argument.schema["type"] == "boolean":
                flags += [f"--{argument.name}"] if item else []
            else:
                flags += [word for each in _words(item) for word in (f"--{argument.name}", each)]
        while positional and not positional[-1]:
            positional.pop()
        words = [word for item in positional for word in item or [""]]
        for word in words if any(argument.is_flag for argument in self.arguments) else ():
            if word.startswith("-") and not _NUMBER.fullmatch(word):
                raise Fault(
                    "EINVAL", f"{shown(word)} begins with `-`, so the script would take it for a flag"
                )
        if "\0" in "".join((*flags, *words)):
            raise Fault("EINVAL", "a word of a command cannot hold NUL")
        return [*flags, *words]


def header_of(data: bytes) -> str:
    """Returns the header of a script that begins with `data`: the lines from `tool:` to the comment's end."""
    found: list[str] = []
    for line in data[: MAX_HEADER + 1].split(b"\n"):
        comment = _COMMENT.fullmatch(line.decode("latin-1"))
        if not comment and (found or line.strip()):
            break
        if found or (comment and re.match(r"tool\s*:", comment[1])):
            found.append(_text(line))
    else:
        if len(data) > MAX_HEADER:
            raise Fault("EMSGSIZE", f"the comment at its top is over {MAX_HEADER >> 10} KiB; shorten it")
    if not found:
        raise Fault("EINVAL", "the comment at its top has no line of the form: # tool: DESCRIPTION")
    return "\n".join(found)


def _text(line: bytes) -> str:
    text = line.decode(errors="replace").replace("\t", " ").rstrip()
    if not text.isprintable() or "\ufffd" in text:
        raise Fault("EINVAL", f"its line {shown(text)} has invisible characters, or is not UTF-8")
    return text


def parsed(header: str) -> Script:
    """Returns the facts of a header. Raises EINVAL with the wrong line."""
    if len(header.encode()) > MAX_HEADER:
        raise Fault("EMSGSIZE", f"a script's comment is over {MAX_HEADER >> 10} KiB")
    facts: dict[str, list[str]] = {"tool": [], "name": [], "timeout": [], "effect": []}
    arguments: list[ScriptArgument] = []
    for text in _lines(header):
        if found := _FACT.fullmatch(text):
            facts[found[1]].append(found[2].strip())
        elif re.match(r"(arg|flag)\s", text):
            arguments.append(_argument(text))
    if not (description := " ".join(facts["tool"]).strip()):
        raise Fault("EINVAL", "its line `tool:` is empty; write what the tool does, and when to use it")
    _check(arguments)
    effects = [_effect(text) for text in facts["effect"]]
    if not any(each.kind == "run_process" for each in effects):
        effects.append(governance.effect("run_process", "script", "always"))
    name, timeout = ("".join(facts[word][:1]) for word in ("name", "timeout"))
    if timeout and not (re.fullmatch("[1-9][0-9]{0,5}", timeout) and int(timeout) <= MAX_SECONDS):
        raise _malformed("timeout", f"timeout: {timeout}")
    seconds = int(timeout) if timeout else None
    return Script(name and names.check(name), description, tuple(arguments), tuple(effects), seconds)


def _lines(header: str) -> Iterator[str]:
    for line in header.split("\n"):
        if comment := _COMMENT.fullmatch(_text(line.encode())):
            yield comment[1].strip()


def _malformed(key: str, text: str, why: str = "") -> Fault:
    return Fault("EINVAL", f"its line {shown(text)} is not of the form: {_FORMS[key]}{why}")


def _argument(text: str) -> ScriptArgument:
    key, found = text.split()[0], _ARGUMENT.fullmatch(text)
    if not found or (found[3] == "..." and found[5] is not None):
        raise _malformed(key, text)
    name, mark, type_, default, about = found.groups()[1:]
    is_flag, is_list = key == "flag", mark == "..."
    kind = type_ or ("boolean" if is_flag and default is None else "")
    choices = kind.split("|")
    if len(choices) > 1 and all(choices):
        schema: dict[str, Any] = {"type": "string", "enum": choices}
    elif kind in _TYPES:
        schema = {"type": _TYPES[kind]}
    else:
        known = ", ".join(sorted(_TYPES))
        raise _malformed(key, text, f", and TYPE is one|two|three or one of {known}")
    if is_list:
        schema = {"type": "array", "items": schema} | ({} if is_flag else {"minItems": 1})
    schema |= {"description": about} if about else {}
    argument = ScriptArgument(name, is_flag, schema, not (is_flag or mark == "?" or default is not None))
    if default is not None:
        schema["default"] = tool_input([f"--{name}={default}".encode()], _schema([argument]), bytes)[name]
        if schema["default"] not in schema.get("enum", [schema["default"]]):
            raise _malformed(key, text, f", and DEFAULT is one of {kind}")
    return argument


def _effect(text: str) -> hostcalls.Effect:
    kind, target, confirmation, *rest = (*text.split(), *[""] * 3)
    if kind not in get_args(EffectKind) or confirmation not in ("", *get_args(Confirmation)) or any(rest):
        raise _malformed("effect", f"effect: {text}")
    target = "" if target == "-" else target
    return governance.effect(kind, target, confirmation or None)  # type: ignore[arg-type]  # both are known


def _check(arguments: list[ScriptArgument]) -> None:
    """Raises EINVAL for arguments that contradict each other."""
    if len(arguments) > MAX_ARGUMENTS:
        raise Fault("EINVAL", f"it has over {MAX_ARGUMENTS} arguments")
    known = {"help"}
    for argument in arguments:
        if (plain := argument.name.replace("-", "_").lower()) in known:
            raise Fault("EINVAL", f"the name {argument.name} is taken; choose another")
        known.add(plain)
    for before, argument in itertools.pairwise(argument for argument in arguments if not argument.is_flag):
        if before.schema["type"] == "array" or (argument.is_required and not before.is_required):
            why = f"{before.name}, which is optional, or takes all remaining words"
            raise Fault("EINVAL", f"{argument.name} cannot follow {why}; change their order")


def _schema(arguments: Sequence[ScriptArgument]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {argument.name: argument.schema for argument in arguments},
        "required": [argument.name for argument in arguments if argument.is_required],
        "additionalProperties": False,
    }


def _words(value: Any) -> list[str]:
    """Returns the words of a value: a string as it is, other values as JSON."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in values]
