"""Arguments and standard input, turned into the input of a tool, a model or an agent (abi.md 4).

Tools: no arguments: standard input is one JSON object. One argument that begins with `{` is the object.
Otherwise, word by word:
    --name value, --name=value    sets a property; the value is the next word, whatever it looks like
    --flag, --no-flag             sets a boolean; --flag takes a following `true` or `false` with it
    name=value                    sets a property of the schema; of no property, it is a bare word
    --                            every word that follows is a bare word
    any other word                is bare, and fills the next required property that nothing else sets;
                                  an array that is the last of them takes all that are left
`-` and `_` in a name may stand for each other where only one property can be meant. An array may be
given again and grows; anything else given twice is EINVAL. `-` as a value is the text of standard input,
which is then read, and only then. How a word becomes a value is said in words.py.

Models and agents: the arguments joined by spaces, `-` left out and standard input's text appended after a
blank line; one argument (or standard input) that is a JSON object with messages, input or task is taken
as it is. Behind such an object, `-` appends to its `input`. Line ends at the end of standard input do not
count, as in a shell's $(...).

Rules: what comes in is bounded by MAX_INPUT altogether; what is wrong is a `Fault` before anything is read.
This file must never know who calls, what a tool is for, or where standard input comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from cortexfs.core.arguments.schema import Shape, shape_of
from cortexfs.core.arguments.words import elements_of, value_of
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped, json_object, nearest, shown

MAX_INPUT = 16 << 20  # abi.md 4.16

MAX_VALUES = 250_000  # of a prompt's JSON object: some 20 MiB of Python's objects

Reader: TypeAlias = Callable[[], bytes]  # standard input to its end; EMSGSIZE past MAX_INPUT
Prompt: TypeAlias = str | dict[str, Any]

_STDIN = "-"
_SHORT_FLAG = re.compile(r"-[^\W\d_]")
_PROMPT_KEYS = ("messages", "input", "task")
_BETWEEN = (b",", b"[", b"{")  # each value of JSON but the first follows one of these, or a colon
# Possessive, and content without a closing quote: one pass, whatever the text is.
_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


class _Setting(msgspec.Struct, frozen=True):
    """A property and the word that it gets; True or False where the flag alone said it."""

    name: str
    word: str | bool


def tool_input(args: Sequence[bytes], schema: Mapping[str, Any], stdin: Reader) -> dict[str, Any]:
    """The input object, converted by the schema's types and not yet validated."""
    return shaped_input(args, partial(shape_of, schema), stdin)


def shaped_input(args: Sequence[bytes], found: Callable[[], Shape], stdin: Reader) -> dict[str, Any]:
    """The same by the schema's shape, which is asked for only where words have to be given to properties."""
    room = _room(args)
    if not args:
        return _piped(_within(stdin(), room))
    if len(args) == 1 and args[0].startswith(b"{"):
        return json_object(args[0])
    shape = found()
    settings = _Words(shape, [_text(arg, f"argument {n}") for n, arg in enumerate(args, 1)]).settings()
    return _values(shape, _grouped(shape, settings), lambda: _within(stdin(), room))


def prompt_room(args: Sequence[bytes]) -> int | None:
    """How much of standard input a prompt takes beside these arguments; None when it is not read.
    What is wrong with them is said now, so that nothing is read in vain."""
    room, given = _room(args), _spoken(args).count(_STDIN)
    if given > 1:
        raise _twice_stdin()
    return room if given or not args else None


def _spoken(args: Sequence[bytes]) -> list[str]:
    """The words, without the first `--`, behind which a word may begin with one."""
    words = [_text(arg, f"argument {number}") for number, arg in enumerate(args, 1)]
    for place, word in enumerate(words):
        if word == "--":
            return words[:place] + words[place + 1 :]
        if word.startswith("--"):
            raise Fault("EINVAL", f"{clipped(word)} is no flag of a prompt; to say it, write -- before it")
    return words


def prompt(args: Sequence[bytes], stdin: bytes = b"") -> Prompt:
    """The prompt's text, or the object that was given in its place; `stdin` as far as it was wanted."""
    room = prompt_room(args)
    words = _spoken(args)
    spoken = [word for word in words if word != _STDIN]
    text = " ".join(spoken)
    if room is not None:
        piped = _text(_within(stdin, room), "standard input").rstrip("\r\n")
        if len(spoken) == 1 and (value := _object(text)) and isinstance(said := value.get("input"), str):
            return _said(value | {"input": _joined(said, piped)})
        text = _joined(text, piped)
    if not text.strip():
        raise Fault("EINVAL", "the prompt is empty; give it as arguments or on standard input")
    if len(spoken) <= 1 and (spoken == words or not spoken) and (value := _object(text)) is not None:
        return _said(value)
    return text


def _joined(said: str, piped: str) -> str:
    return "\n\n".join(part for part in (said, piped) if part)


def _object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object that takes the place of a prompt."""
    if not text.lstrip().startswith("{"):
        return None
    data = text.encode()
    _check_count(data)
    try:
        value = json_object(data)
    except Fault:
        return None  # text that happens to begin with a brace
    return value if any(key in value for key in _PROMPT_KEYS) else None


def _said(value: dict[str, Any]) -> dict[str, Any]:
    if not any(value.get(key) for key in _PROMPT_KEYS):
        raise Fault("EINVAL", "the prompt is empty; messages, input or task must hold something")
    return value


def _check_count(data: bytes) -> None:
    """JSON of many small values takes fifty times its own size in memory: that is bounded as well."""
    if sum(map(data.count, _BETWEEN)) > MAX_VALUES:
        bare = _JSON_STRING.sub(b"", data)
        if sum(map(bare.count, _BETWEEN)) > MAX_VALUES:
            raise Fault("EMSGSIZE", f"the prompt's object holds over {MAX_VALUES} values; send text instead")


class _Words:
    """Reads words from left to right into settings; knows properties, not values."""

    def __init__(self, shape: Shape, words: list[str]) -> None:
        self._shape = shape
        self._left = list(reversed(words))
        self._settings: list[_Setting] = []
        self._bare: list[str] = []

    def settings(self) -> list[_Setting]:
        while self._left:
            word = self._left.pop()
            if word == "--":
                self._bare += reversed(self._left)
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
        following = self._left[-1] if self._left else None
        if self._shape.kind(name).flag:
            return self._left.pop() if following in ("true", "false") else True
        if following is None:
            raise Fault("EINVAL", f"--{name} needs a value")
        return self._left.pop()

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
        alike = [name for name in properties if _same(name) == _same(label)]
        if len(alike) > 1:
            raise Fault("EINVAL", f"{shown(label)} may mean {' or '.join(alike)}; write one of them exactly")
        return alike[0] if alike else None

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
    """Give the bare words to the required properties that are still open, in schema order."""
    given = {setting.name for setting in settings}
    names = [name for name in shape.required if name not in given]
    if names and "array" in shape.kind(names[-1]).types and "string" not in shape.kind(names[-1]).types:
        names += names[-1:] * (len(bare) - len(names))
    if len(bare) > len(names):
        takes = ", ".join(names) or "no bare words"
        raise Fault("EINVAL", f"surplus word {shown(bare[len(names)])}: this call takes {takes}")
    return (_Setting(name, word) for name, word in zip(names, bare, strict=False))


def _grouped(shape: Shape, settings: list[_Setting]) -> dict[str, list[str | bool]]:
    groups: dict[str, list[str | bool]] = {}
    for setting in settings:
        groups.setdefault(setting.name, []).append(setting.word)
    for name, words in groups.items():
        if len(words) > 1 and "array" not in shape.kind(name).types:
            raise Fault("EINVAL", f"{name}: is given {len(words)} times, and it is not an array")
    if sum(word == _STDIN for words in groups.values() for word in words) > 1:
        raise _twice_stdin()
    return groups


def _values(shape: Shape, groups: dict[str, list[str | bool]], stdin: Reader) -> dict[str, Any]:
    """Convert; what needs standard input comes last, so that a mistake is told without reading it."""
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
    """Standard input as the whole input; whoever pipes text is told how to."""
    try:
        return json_object(data)
    except Fault as fault:
        if data.lstrip().startswith(b"{"):
            raise
        raise Fault(fault.code, f"{fault.message}; to pipe text, give - as an argument") from None


def _twice_stdin() -> Fault:
    return Fault("EINVAL", "standard input can be read only once; - may be given once")


def _room(args: Sequence[bytes]) -> int:
    """How many bytes standard input may still add."""
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


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as bad:
        raise Fault("EINVAL", f"{what} is not UTF-8: byte {bad.start} is {data[bad.start]:#04x}") from None
