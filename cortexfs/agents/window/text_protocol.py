"""Tool calls in plain text, for a model without tool calls of its own (its `.d/cap` lacks tool_call_syntax).

    {"tool": "fs.read", "input": {"path": "notes.txt"}}      a call
    {"answer": "It says hello."}                             the end
    "It says hello."                                         the end, of a `plain` model

    system += instruction(tools)         the instructions for the model
    schema(tools)                        the schema of its answer, where a provider can hold it to one
    Spoken().feed(delta)                 the text of a plain answer before its end
    parse(text, tools)                   its answer: a TextCall, a TextReply or a TextMistake
    as_text(messages)                    calls and results of earlier steps, written in this protocol

A plain model can be held to any JSON: its answer is a JSON text, which a small model writes like any other
text. Into an object with `answer` it would write the words of the example.

Rules: one call a step, and the first object counts. Any output of a model is parsed as one of the three, in
time that grows with its length. Elsewhere the tool's own schema judges an input; the shape that is described
here is a help. Outputs of tools are passed on unchanged.
This file must never know how a tool is run, or if it may be run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.arguments.schema import Shape, ValueKind, kind_of, shape_of
from cortexfs.core.errors import Fault
from cortexfs.models.ask.question import Part, PromptMessage, PromptText, ToolOffer

MAX_TRIES = 64  # objects of one text that are tried
MAX_DESCRIPTION = 200  # characters: small models have a small window
MAX_LEVELS = 3  # levels of an input that are spelled out
MAX_NAMES = 20  # names of tools in a sentence


class TextCall(NamedTuple):
    name: str
    input: dict[str, Any]


class TextReply(NamedTuple):
    text: str


class TextMistake(NamedTuple):
    why: str  # a sentence for the model


Parsed: TypeAlias = TextCall | TextReply | TextMistake

_PROTOCOL = """\
You can call tools. Reply with one JSON object and nothing else.
To call a tool: {example}
To answer: {{"answer": "your text"}}
After a call you are shown what the tool put out. Then call again, or answer.

Tools, with their input (? may be left out):
{tools}"""

_PLAIN = """\
You can call tools. To call one, reply with one JSON object and nothing else:
{example}
After a call you are shown what the tool put out. Then call again, or answer in plain words.

Tools, with their input (? may be left out):
{tools}"""


_SENTENCE = re.compile(r"(?<=[.!?]) ")


def instruction(tools: Sequence[ToolOffer], plain: bool = False) -> str:
    """Returns the text to append to the system prompt, or an empty text without tools."""
    if not tools:
        return ""
    example = _written(tools[0].name, _example(tools[0]))
    return (_PLAIN if plain else _PROTOCOL).format(example=example, tools="\n".join(map(_line, tools)))


def _line(tool: ToolOffer) -> str:
    sentence = _SENTENCE.split(" ".join(tool.description.split()), maxsplit=1)[0]
    description = jsontext.clipped(sentence, MAX_DESCRIPTION)
    return f"- {tool.name} {_fields(shape_of(tool.schema))}" + (f": {description}" if description else "")


def _fields(shape: Shape, levels: int = MAX_LEVELS) -> str:
    listed = []
    for name, schema in shape.properties.items():
        mark = "" if name in shape.required else "?"
        listed.append(f"{name}{mark}: {_type(kind_of(schema, shape.root), schema, shape, levels - 1)}")
    return "{" + ", ".join(listed) + "}"


def _type(kind: ValueKind, schema: Any, shape: Shape, levels: int) -> str:
    if kind.choices:
        return "|".join(map(jsontext.shown, kind.choices))
    types = sorted(kind.types - {"null"}) or ["null"]
    if types == ["object"] and levels and schema.get("properties"):
        below = shape_of(schema)
        return _fields(Shape(shape.root, below.properties, below.required), levels)
    if types == ["array"] and levels and kind.items:
        return f"{_type(shape.items(kind), kind.items, shape, levels - 1)}[]"
    return "any" if len(types) > 3 else "|".join(types)


def _example(tool: ToolOffer) -> dict[str, Any]:
    """Returns an input of the right shape. Small models copy words that only describe a value ("the path"),
    but replace words that look like a value."""
    shape = shape_of(tool.schema)
    return {name: _sample(name, shape.kind(name)) for name in shape.required}


_SAMPLES = {"path": "notes/today.md", "pattern": "*.md", "cmd": "ls -l", "url": "https://example.org/"}


def _sample(name: str, kind: ValueKind) -> Any:
    if kind.choices:
        return kind.choices[0]
    samples = {
        "string": _SAMPLES.get(name, "some words"),
        "integer": 1,
        "number": 1,
        "boolean": True,
        "array": [],
        "object": {},
    }
    return next((value for type_, value in samples.items() if type_ in kind.types), None)


# The parts of a schema that go into a grammar. Some engines refuse the rest (patterns, lengths, bounds), or
# make grammars of it that are too large; it is judged when the tool is called.
_KEYWORDS = ("type", "required", "enum", "const")
_BELOW = ("items", "additionalProperties")
_MAPS = ("properties", "$defs", "definitions")
_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf", "prefixItems": "prefixItems"}


def schema(tools: Sequence[ToolOffer], plain: bool = False) -> dict[str, Any]:
    """Returns the schema of an answer: a call of one of the tools, or an answer. With `type` beside `anyOf`
    it is not taken for a strict schema, in which OpenAI allows no choices at the root."""
    calls = [
        _closed({"tool": {"const": tool.name}, "input": {"$ref": f"#/$defs/input{number}"}})
        for number, tool in enumerate(tools)
    ]
    inputs = {f"input{n}": _loosened(tool.schema, f"#/$defs/input{n}") for n, tool in enumerate(tools)}
    answer: dict[str, Any] = {"type": "string"}
    found: dict[str, Any] = {"anyOf": [*calls, answer if plain else _closed({"answer": answer})]}
    found |= {} if plain else {"type": "object"}
    return found | ({"$defs": inputs} if inputs else {})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _loosened(schema: dict[str, Any], base: str) -> dict[str, Any]:
    """Returns the part of a tool's schema that a grammar needs, to stand at `base`. Objects are closed unless
    they say otherwise, so that a model cannot invent names."""
    return {"type": "object", **_pruned(schema, base, closing=not _combines(schema))}


def _combines(schema: Any) -> bool:
    """Returns True if several schemas hold for one value somewhere: a closed one would exclude the others."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    beside = "properties" in schema and any(key in schema for key in ("$ref", "anyOf", "oneOf"))
    return beside or "allOf" in schema or any(map(_combines, schema.values()))


def _pruned(schema: Any, base: str, closing: bool) -> Any:
    if not isinstance(schema, dict):
        return schema if isinstance(schema, bool) else {}
    result = {key: schema[key] for key in _KEYWORDS if key in schema}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        result["$ref"] = base + reference[1:]
    for key in _BELOW:
        if key in schema:
            result[key] = _pruned(schema[key], base, closing)
    for key in _MAPS:
        if isinstance(schemas := schema.get(key), dict):
            result[key] = {name: _pruned(each, base, closing) for name, each in schemas.items()}
    for key, target in _LISTS.items():
        if isinstance(listed := schema.get(key), list):
            result[target] = [_pruned(each, base, closing) for each in listed]
    if "patternProperties" in schema:
        result.pop("additionalProperties", None)
    elif closing and "properties" in result:
        result.setdefault("additionalProperties", False)
    return result


# A reply with this is a failed attempt at the protocol. Without it, a reply is an answer in plain words.
_ATTEMPT = re.compile(r"""\{\s*["']?(?:tool|answer)["']?\s*:""")
_decoder = json.JSONDecoder()
_EMPTY = "the reply is empty; call a tool, or answer"


def parse(text: str, tools: Sequence[ToolOffer], plain: bool = False) -> Parsed:
    """Returns a model's answer, parsed. The first JSON object with `tool` or `answer` counts, whatever stands
    around it. A text without one is an answer in plain words."""
    if plain and text.lstrip().startswith('"'):
        return _quoted(text.strip())
    if (found := _object(text)) is not None:
        try:
            return _judged(jsontext.decode(found.encode(errors="replace"), "the reply"), tools)
        except Fault as fault:
            return TextMistake(fault.message)
    if _ATTEMPT.search(text):
        return TextMistake("the reply holds no whole JSON object; it was cut off, or is not JSON")
    if not text.strip():
        return TextMistake(_EMPTY)
    return TextReply(text.strip())


def _quoted(text: str) -> Parsed:
    """Returns the answer in a JSON text. A text that was cut off counts as far as it came."""
    answer = Spoken().feed(text)
    return TextReply(answer) if answer.strip() else TextMistake(_EMPTY)


class Spoken:
    """A plain answer, as it comes: `feed` returns its new words, and an empty text for other replies."""

    _CHARACTERS = re.compile(r"""(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*""")
    _HALF = re.compile(r"\\u[dD][89abAB]..$")  # half of a character, whose other half is to come
    _OPEN = 11  # characters that may wait for the next piece: such a half, and most of the other one

    def __init__(self) -> None:
        self._rest = ""
        self._begun = self._over = False

    def feed(self, text: str) -> str:
        if self._over:
            return ""
        self._rest += text
        if not self._begun:
            self._rest = self._rest.lstrip()
            if not self._rest.startswith('"'):
                self._over = bool(self._rest)
                return ""
            self._rest, self._begun = self._rest[1:], True
        found = self._CHARACTERS.match(self._rest)
        piece = self._HALF.sub("", found.group()) if found else ""
        self._rest = self._rest[len(piece) :]
        self._over = self._rest.startswith('"') or len(self._rest) > self._OPEN
        string: str = json.loads(f'"{piece}"', strict=False)
        return string.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _object(text: str) -> str | None:
    """Returns the text of the first object that follows the protocol."""
    start = text.find("{")
    for _ in range(MAX_TRIES):
        if start < 0:
            break
        try:
            found, end = _decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            found, end = {}, start + 1
        if "tool" in found or "answer" in found:
            return text[start:end]
        start = text.find("{", end)
    return None


def _judged(found: dict[str, Any], tools: Sequence[ToolOffer]) -> Parsed:
    if "tool" not in found:
        answer = found["answer"]
        return TextReply(answer if isinstance(answer, str) else msgspec.json.encode(answer).decode())
    if "answer" in found:
        return TextMistake("the reply holds both tool and answer; say one of them")
    name, input_ = found["tool"], found.get("input", {})
    if name not in [tool.name for tool in tools]:
        return TextMistake(f"tool: there is no tool {jsontext.shown(name)}; there are: {_names(tools)}")
    if not isinstance(input_, dict):
        return TextMistake(f"input: expected object, got {jsontext.type_name(input_)}")
    return TextCall(name, input_)


def _names(tools: Sequence[ToolOffer]) -> str:
    more = len(tools) - MAX_NAMES
    names = ", ".join(tool.name for tool in tools[:MAX_NAMES]) or "none"
    return f"{names} and {more} more" if more > 0 else names


# Earlier steps.


def result_message(name: str, output: str, is_error: bool) -> PromptMessage:
    """Returns a tool's output, in the words of wording.py, as a message of the user: no other role fits."""
    heading = f"The call of {name} failed:" if is_error else f"The output of {name}:"
    return PromptMessage("user", (PromptText(f"{heading}\n{output}\nCall again, or answer."),))


def as_text(messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
    """Returns a conversation with its calls and results written as text. Messages of one role in a row become
    one, as the templates of many models refuse them."""
    names = {call.call: call.name for each in messages for call in each.calls}
    turns = [_textual(each, names) for each in messages]
    return tuple(_joined(list(group)) for _, group in groupby(turns, key=lambda each: each.role))


def _textual(message: PromptMessage, names: dict[str, str]) -> PromptMessage:
    if message.role == "tool":
        return result_message(names.get(message.call, "a tool"), message.text, message.is_error)
    calls = tuple(PromptText(_written(call.name, call.input)) for call in message.calls)
    return PromptMessage(message.role, (*message.parts, *calls))


def _joined(turns: list[PromptMessage]) -> PromptMessage:
    """Returns turns of one role as one turn, with a blank line between texts."""
    parts: list[Part] = []
    for part in (part for turn in turns for part in turn.parts):
        if isinstance(part, PromptText) and parts and isinstance(last := parts[-1], PromptText):
            parts[-1] = PromptText(f"{last.text}\n\n{part.text}")
        else:
            parts.append(part)
    return PromptMessage(turns[0].role, tuple(parts))


def _written(name: str, input_: Any) -> str:
    return msgspec.json.encode({"tool": name, "input": input_}).decode()
