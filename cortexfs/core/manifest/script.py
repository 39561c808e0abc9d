"""A script that is a tool: what the comment at its top says, and the words that an input becomes.

    #!/bin/sh
    # tool: Greet somebody, when they arrive.
    # arg who string: whom
    # arg times? integer = 1: how often
    # flag loud: in capitals

The grammar is that of abi.md 12.1 to 12.7. Rules: this comment, the *header*, is a stranger's word: it is
short, of printable text, and a fault quotes the line that is wrong.
This file must never know where a script lies, who may run it, or how it is run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

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
_TYPES = {"string": "string", "str": "string", "path": "string", "integer": "integer", "int": "integer",
          "number": "number", "float": "number", "boolean": "boolean", "bool": "boolean"}  # fmt: skip
_NAMED = re.compile(r"(tool|name|timeout|effect)\s*:\s*(.*)")
_DECLARED = re.compile(r"(arg|flag)\s+(.*)")
_ARGUMENT = re.compile(
    r"([A-Za-z_][A-Za-z0-9_-]{0,63})(\?|\.\.\.)?(?:\s+([^\s=:]+))?(?:\s*=\s*(.*?))?\s*:(?:\s+(.*))?"
)
_FORMS = {
    "arg": "arg NAME[?|...] TYPE [= DEFAULT]: text",
    "flag": "flag NAME[...] [TYPE [= DEFAULT]]: text",
    "effect": "effect: KIND [TARGET [never|on_risk|always]]",
    "timeout": f"timeout: SECONDS, from 1 to {MAX_SECONDS}",
}
_NUMBER = re.compile(r"-(?:[0-9.]+(?:e[+-]?[0-9]+)?)?")

Told: TypeAlias = Literal["word", "option", "switch"]  # to the script: `VALUE`, `--name VALUE`, `--name`


class ScriptArgument(NamedTuple):
    name: str
    told: Told
    schema: dict[str, Any]
    is_required: bool


class Script(NamedTuple):
    """The facts in a header."""

    name: str  # empty: the file's
    description: str
    arguments: tuple[ScriptArgument, ...]
    effects: tuple[hostcalls.Effect, ...]
    timeout: int | None

    @property
    def schema(self) -> dict[str, Any]:
        return _schema(self.arguments)

    @property
    def told(self) -> tuple[str, dict[str, Any], int | None, tuple[hostcalls.Effect, ...]]:
        """Returns what callers are told of it."""
        return self.description, self.schema, self.timeout, self.effects

    def words(self, value: Mapping[str, Any]) -> list[str]:
        """Returns the words that the script gets: its options, then the others in their order. An argument
        that is left out is the empty word, and no word behind the last one that is given."""
        options: list[str] = []
        placed: list[Any] = []
        for one in self.arguments:
            given = value.get(one.name, one.schema.get("default"))
            if one.told == "word":
                placed.append(given)
            elif one.told == "option":
                options += [each for said in _words(given) for each in (f"--{one.name}", said)]
            elif given:
                options.append(f"--{one.name}")
        while placed and placed[-1] is None:
            placed.pop()
        words = [word for given in placed for word in (_words(given) if given is not None else [""])]
        _check_words(words, any(one.told != "word" for one in self.arguments))
        _check_words(options, has_options=False)
        return [*options, *words]


def header_of(data: bytes) -> str:
    """Returns the header of a script that begins so: the lines from `tool:` to the end of that comment."""
    found: list[str] = []
    lines = data[: MAX_HEADER + 1].split(b"\n")
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith(b"#!"):
            continue
        comment = _COMMENT.fullmatch(line.decode("latin-1"))
        if not comment and (found or line.strip()):
            break
        if found or (comment and re.match(r"tool\s*:", comment[1])):
            found.append(_text(number, line))
    else:
        if len(data) > MAX_HEADER:
            raise Fault("EMSGSIZE", f"the comment at its top is over {MAX_HEADER >> 10} KiB; shorten it")
    if not found:
        raise Fault("EINVAL", "the comment at its top has no line of the form: # tool: DESCRIPTION")
    return "\n".join(found)


def _text(number: int, line: bytes) -> str:
    try:
        text = line.decode().replace("\t", " ").rstrip()
    except UnicodeDecodeError:
        raise Fault("EINVAL", f"line {number} of the comment at its top is not UTF-8") from None
    if not text.isprintable():
        raise Fault("EINVAL", f"line {number} of the comment at its top has characters that are not shown")
    return text


def parsed(header: str) -> Script:
    """The facts of a header; EINVAL quotes the line that is wrong."""
    said: dict[str, list[str]] = {"tool": [], "name": [], "timeout": []}
    arguments: list[ScriptArgument] = []
    effects: list[hostcalls.Effect] = []
    if len(header) > MAX_HEADER:
        raise Fault("EMSGSIZE", f"a script's comment is over {MAX_HEADER >> 10} KiB")
    for number, line in enumerate(header.split("\n"), 1):
        comment = _COMMENT.fullmatch(_text(number, line.encode()))
        text = comment[1].strip() if comment else ""
        try:
            if named := _NAMED.fullmatch(text):
                if named[1] == "effect":
                    effects.append(_effect(named[2]))
                else:
                    said[named[1]].append(named[2])
            elif declared := _DECLARED.fullmatch(text):
                arguments.append(_argument(declared[1], declared[2]))
        except Fault as fault:
            raise Fault(fault.code, f"{shown(text)}: {fault.message}") from None
    description = " ".join(said["tool"]).strip()
    if not description:
        raise Fault(
            "EINVAL", "its line `tool:` has no description; say there what it does, and when to use it"
        )
    _check(arguments)
    name = "".join(said["name"][:1])
    if not any(each.kind == "run_process" for each in effects):
        effects.append(governance.effect("run_process", "script", "always"))
    timeout = _timeout(said["timeout"])
    return Script(name and names.check(name), description, tuple(arguments), tuple(effects), timeout)


def _argument(what: str, text: str) -> ScriptArgument:
    found = _ARGUMENT.fullmatch(text)
    is_flag = what == "flag"
    if not found or not (found[3] or (is_flag and not found[4])):
        raise Fault("EINVAL", f"it is not of the form: {_FORMS[what]}")
    name, mark, type_, default, about = found.groups()
    is_list = mark == "..."
    schema = _type(type_ or "boolean")
    if is_list:
        schema = {"type": "array", "items": schema} | ({} if is_flag else {"minItems": 1})
    schema |= {"description": about} if about else {}
    told: Told = "word" if not is_flag else "option" if type_ else "switch"
    made = ScriptArgument(name, told, schema, not (is_flag or mark == "?" or default is not None))
    if default is not None:
        if is_list:
            raise Fault("EINVAL", "a list has no default")
        schema["default"] = tool_input([f"--{name}={default}".encode()], _schema([made]), bytes)[name]
        if schema["default"] not in schema.get("enum", [schema["default"]]):
            raise Fault("EINVAL", f"its default is none of {type_}")
    return made


def _type(word: str) -> dict[str, Any]:
    choices = word.split("|")
    if len(choices) > 1 and all(choices):
        return {"type": "string", "enum": choices}
    if word not in _TYPES:
        known = "string, integer, number, boolean, or one|two|three"
        raise Fault("EINVAL", f"{shown(word)} is no type; there are {known}")
    return {"type": _TYPES[word]}


def _effect(text: str) -> hostcalls.Effect:
    kind, target, asked, *rest = (*text.split(), "", "", "") if text else ("",) * 3
    if kind not in get_args(EffectKind) or asked not in ("", *get_args(Confirmation)) or any(rest):
        kinds = ", ".join(get_args(EffectKind))
        raise Fault("EINVAL", f"it is not of the form: {_FORMS['effect']}; the kinds are {kinds}")
    return governance.effect(kind, "" if target == "-" else target, asked or None)  # type: ignore[arg-type]  # both were looked up


def _timeout(said: list[str]) -> int | None:
    text = "".join(said[:1])
    if not text:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text) or int(text) > MAX_SECONDS:
        raise Fault("EINVAL", f"its timeout is not of the form: {_FORMS['timeout']}")
    return int(text)


def _check(arguments: list[ScriptArgument]) -> None:
    """Raises EINVAL for lines that do not go together."""
    if len(arguments) > MAX_ARGUMENTS:
        raise Fault("EINVAL", f"it has over {MAX_ARGUMENTS} arguments")
    known: set[str] = set()
    words = [one for one in arguments if one.told == "word"]
    for one in arguments:
        if (plain := one.name.replace("-", "_").lower()) in known or plain == "help":
            raise Fault("EINVAL", f"the name {one.name} is that of another argument; choose another")
        known.add(plain)
    for before, one in itertools.pairwise(words):
        if before.schema["type"] == "array":
            raise Fault(
                "EINVAL", f"{before.name} takes all words that are left, so it has to be the last `arg`"
            )
        if one.is_required and not before.is_required:
            raise Fault("EINVAL", f"{one.name} is needed and stands behind {before.name}, which is not")


def _schema(arguments: Iterable[ScriptArgument]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {one.name: one.schema for one in arguments},
        "required": [one.name for one in arguments if one.is_required],
        "additionalProperties": False,
    }


def _words(given: Any) -> list[str]:
    """A value as words: a string as it is, others as JSON has them."""
    every = given if isinstance(given, list) else [] if given is None else [given]
    return [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in every]


def _check_words(words: Iterable[str], has_options: bool) -> None:
    for word in words:
        if "\0" in word:
            raise Fault("EINVAL", "a word of a command cannot hold NUL")
        if has_options and word.startswith("-") and not _NUMBER.fullmatch(word):
            raise Fault("EINVAL", f"{shown(word)} begins with `-`, so the script would take it for an option")
