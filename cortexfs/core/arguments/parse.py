"""Arguments and standard input, turned into the input of a tool, a model or an agent (abi.md 4).

Tools: no arguments: standard input is one JSON object. One argument that begins with `{` is the object.
Otherwise, word by word:
    --name value, --name=value    sets a property; the value is the next word, whatever it looks like
    --flag, --no-flag             sets a boolean; --flag takes a following `true` or `false` as its value
    name=value                    sets a property of the schema; for any other name, it is a bare word
    --                            every word that follows is a bare word
    any other word                is bare, and fills the next required property that no other word sets;
                                  if the last of these is an array, it takes all words that are left
`-` and `_` in a name may stand for each other if only one property fits. An array may be set repeatedly, and
grows. Any other property that is set twice is EINVAL. A value of `-` is the text of standard input, which is
read only in that case. words.py makes values of words.

Models and agents: the prompt is the arguments joined by spaces. A `-` is left out, and appends the text of
standard input after a blank line. One argument (or standard input) that is a JSON object with messages, input
or task is taken as it is. After such an object, `-` appends to its `input`. Line ends at the end of standard
input are dropped, as in a shell's $(...).

Rules: arguments and input together have at most MAX_INPUT bytes. Mistakes in arguments are a `Fault` before
standard input is read.
This file must never know who calls, the purpose of a tool, or where standard input comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec

from cortexfs.core.arguments.schema import Shape, shape_of
from cortexfs.core.arguments.words import elements_of, value_of
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, clipped, json_object, nearest, shown

MAX_INPUT = 16 << 20  # abi.md 4.16

MAX_VALUES = 250_000  # values in a prompt's JSON object, which take some 20 MiB in Python

Reader: TypeAlias = Callable[[], bytes]  # returns all of standard input; raises EMSGSIZE past MAX_INPUT
Prompt: TypeAlias = str | dict[str, Any]

_STDIN = "-"
_SHORT_FLAG = re.compile(r"-[^\W\d_]")
_PROMPT_KEYS = ("messages", "input", "task")
_BETWEEN = (b",", b"[", b"{")  # each value of JSON except the first follows one of these, or a colon
# Possessive, and the closing quote is optional. So one pass is enough, whatever the text is.
_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


class _Setting(msgspec.Struct, frozen=True):
    """A property and the word that sets it, or True or False if a flag alone sets it."""

    name: str
    word: str | bool


def tool_input(args: Sequence[bytes], schema: Mapping[str, Any], stdin: Reader) -> dict[str, Any]:
    """Returns the input object, converted by the schema's types and not yet validated."""
    return shaped_input(args, partial(shape_of, schema), stdin)


def shaped_input(args: Sequence[bytes], found: Callable[[], Shape], stdin: Reader) -> dict[str, Any]:
    """Returns the input object by the schema's shape. Calls `found` only if words have to set properties."""
    room = _room(args)
    if not args:
        return _piped(_within(stdin(), room))
    if len(args) == 1 and args[0].startswith(b"{"):
        return json_object(args[0])
    shape = found()
    settings = _Words(shape, [_text(arg, f"argument {n}") for n, arg in enumerate(args, 1)]).settings()
    return _values(shape, _grouped(shape, settings), lambda: _within(stdin(), room))


def prompt_room(args: Sequence[bytes]) -> int | None:
    """Returns how many bytes of standard input a prompt takes beside these arguments, or None to read none.
    Raises a Fault for wrong arguments now, so that standard input is not read in vain."""
    room, dashes = _room(args), _prompt_words(args).count(_STDIN)
    if dashes > 1:
        raise _stdin_fault()
    return room if dashes or not args else None


def _prompt_words(args: Sequence[bytes]) -> list[str]:
    """Returns the words without the first `--`. After that, words may begin with `--`."""
    words = [_text(arg, f"argument {number}") for number, arg in enumerate(args, 1)]
    for place, word in enumerate(words):
        if word == "--":
            return words[:place] + words[place + 1 :]
        if word.startswith("--"):
            raise Fault("EINVAL", f"a prompt has no flag {clipped(word)}; to send it, write -- before it")
    return words


def prompt(args: Sequence[bytes], stdin: bytes = b"") -> Prompt:
    """Returns the prompt's text, or the object in its place. `stdin` is empty if prompt_room returns None."""
    room = prompt_room(args)
    words = _prompt_words(args)
    texts = [word for word in words if word != _STDIN]
    text = " ".join(texts)
    if room is not None:
        piped = _text(_within(stdin, room), "standard input").rstrip("\r\n")
        if len(texts) == 1 and (value := _object(text)) and isinstance(message := value.get("input"), str):
            return _nonempty(value | {"input": _joined(message, piped)})
        text = _joined(text, piped)
    if not text.strip():
        raise Fault("EINVAL", "the prompt is empty; give it as arguments or on standard input")
    if len(texts) <= 1 and (texts == words or not texts) and (value := _object(text)) is not None:
        return _nonempty(value)
    return text


def _joined(text: str, piped: str) -> str:
    return "\n\n".join(part for part in (text, piped) if part)


def _object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object that takes the place of a prompt's text, or None."""
    if not text.lstrip().startswith("{"):
        return None
    data = text.encode()
    _check_count(data)
    try:
        value = json_object(data)
    except Fault:
        with suppress(*UNREADABLE):
            if not msgspec.json.decode(data, type=dict[str, msgspec.Raw]).keys().isdisjoint(_PROMPT_KEYS):
                raise
        return None  # it is text that begins with a brace
    return value if any(key in value for key in _PROMPT_KEYS) else None


def _nonempty(value: dict[str, Any]) -> dict[str, Any]:
    if not any(value.get(key) for key in _PROMPT_KEYS):
        raise Fault("EINVAL", "the prompt is empty; messages, input or task must hold something")
    return value


def _check_count(data: bytes) -> None:
    """Refuse JSON of too many values, as many small values take fifty times their size in memory."""
    if sum(map(data.count, _BETWEEN)) > MAX_VALUES:
        bare = _JSON_STRING.sub(b"", data)
        if sum(map(bare.count, _BETWEEN)) > MAX_VALUES:
            raise Fault("EMSGSIZE", f"the prompt's object holds over {MAX_VALUES} values; send text instead")


class _Words:
    """Reads words from left to right into settings. It knows properties, and no values."""

    def __init__(self, shape: Shape, words: list[str]) -> None:
        self._shape = shape
        self._rest = list(reversed(words))
        self._settings: list[_Setting] = []
        self._bare: list[str] = []

    def settings(self) -> list[_Setting]:
        while self._rest:
            word = self._rest.pop()
            if word == "--":
                self._bare += reversed(self._rest)
                break
            if word.startswith("--"):
                self._flag(word[2:])
            elif _SHORT_FLAG.match(word):
                raise self._unknown(word, word[1:])
            else:
                self._plain(word)
        return self._settings + list(_filled(self._shape, self._settings, self._bare))

    def _flag(self, word: str) -> None:
        label, equals, value = word.partition("=")
        if name := self._property(label):
            self._settings.append(_Setting(name, value if equals else self._argument(name)))
        elif name := self._negated(label):
            if equals:
                raise Fault("EINVAL", f"--{label} takes no value; write --{name}=true or --{name}=false")
            self._settings.append(_Setting(name, False))
        else:
            raise self._unknown(f"--{label}", label)

    def _argument(self, name: str) -> str | bool:
        following = self._rest[-1] if self._rest else None
        if self._shape.kind(name).flag:
            return self._rest.pop() if following in ("true", "false") else True
        if following is None:
            raise Fault("EINVAL", f"--{name} needs a value")
        return self._rest.pop()

    def _plain(self, word: str) -> None:
        label, equals, value = word.partition("=")
        if equals and (name := self._property(label)):
            self._settings.append(_Setting(name, value))
        else:
            self._bare.append(word)

    def _property(self, label: str) -> str | None:
        properties = self._shape.properties
        if label in properties:
            return label
        matches = [name for name in properties if _same(name) == _same(label)]
        if len(matches) > 1:
            raise Fault(
                "EINVAL", f"{shown(label)} may mean {' or '.join(matches)}; write one of them exactly"
            )
        return matches[0] if matches else None

    def _negated(self, label: str) -> str | None:
        name = self._property(label[3:]) if label.startswith(("no-", "no_")) else None
        return name if name and self._shape.kind(name).flag else None

    def _unknown(self, flag: str, label: str) -> Fault:
        if flag == "--help":
            return Fault("EINVAL", "--help must be the only argument")
        offer = nearest(label, self._shape.properties).replace("did you mean ", "did you mean --")
        known = " ".join(f"--{name}" for name in self._shape.properties) or "none"
        return Fault(
            "EINVAL", clipped(f"unknown flag {clipped(flag, 60)}{offer or f'; known flags: {known}'}")
        )


def _filled(shape: Shape, settings: list[_Setting], bare: list[str]) -> Iterable[_Setting]:
    """Returns settings of the required properties that are still open, by the bare words, in schema order."""
    used = {setting.name for setting in settings}
    names = [name for name in shape.required if name not in used]
    if names and "array" in shape.kind(names[-1]).types and "string" not in shape.kind(names[-1]).types:
        names += names[-1:] * (len(bare) - len(names))
    if len(bare) > len(names):
        takes = ", ".join(names) or "no words without names"
        flags = " ".join(f"--{name}" for name in shape.properties if name not in {*shape.required, *used})
        known = f"; known flags: {flags}" if flags else ""
        message = f"surplus word {shown(bare[len(names)])}: this call takes {takes}{known}"
        raise Fault("EINVAL", clipped(message))
    return (_Setting(name, word) for name, word in zip(names, bare, strict=False))


def _grouped(shape: Shape, settings: list[_Setting]) -> dict[str, list[str | bool]]:
    groups: dict[str, list[str | bool]] = {}
    for setting in settings:
        groups.setdefault(setting.name, []).append(setting.word)
    for name, words in groups.items():
        if len(words) > 1 and "array" not in shape.kind(name).types:
            raise Fault("EINVAL", f"{name}: is given {len(words)} times, but it is not an array")
    if sum(word == _STDIN for words in groups.values() for word in words) > 1:
        raise _stdin_fault()
    return groups


def _values(shape: Shape, groups: dict[str, list[str | bool]], stdin: Reader) -> dict[str, Any]:
    """Returns the values of the words. Reads standard input last, so that mistakes are found without it."""
    values: dict[str, Any] = dict.fromkeys(groups)
    for name in sorted(groups, key=lambda name: _STDIN in groups[name]):
        words = [_text(stdin(), "standard input") if word == _STDIN else word for word in groups[name]]
        values[name] = _value(shape, name, words)
    return values


def _value(shape: Shape, name: str, words: list[str | bool]) -> Any:
    kind = shape.kind(name)
    if len(words) == 1:
        word = words[0]
        return word if isinstance(word, bool) else value_of(word, kind, shape, name)
    elements: list[Any] = []
    for word in words:
        assert isinstance(word, str)  # only flags are True or False, and they cannot be repeated
        elements += elements_of(word, kind, shape, name, len(elements))
    return elements


def _same(name: str) -> str:
    return name.replace("-", "_")


def _piped(data: bytes) -> dict[str, Any]:
    """Returns standard input as the whole input. A fault for text tells the user how to pipe text."""
    try:
        return json_object(data)
    except Fault as fault:
        if data.lstrip().startswith(b"{"):
            raise
        raise Fault(fault.code, f"{fault.message}; to pipe text, give - as an argument") from None


def _stdin_fault() -> Fault:
    return Fault("EINVAL", "standard input can be read only once; write - only once")


def _room(args: Sequence[bytes]) -> int:
    """Returns how many bytes standard input may still add."""
    size = sum(map(len, args))
    if size > MAX_INPUT:
        raise _too_long()
    return MAX_INPUT - size


def _within(data: bytes, room: int) -> bytes:
    if len(data) > room:
        raise _too_long()
    return data


def _too_long() -> Fault:
    return Fault("EMSGSIZE", "the input is over 16 MiB; pass large data as a file")


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Fault(
            "EINVAL", f"{source} is not UTF-8: byte {error.start} is {data[error.start]:#04x}"
        ) from None
