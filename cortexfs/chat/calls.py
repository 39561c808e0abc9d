"""Calls and results of tools, as lines for a person who may have to decide about them.

    called(name, input, sight)     a line, and below it the command or the change as a unified diff
    resulted(frame)                the first lines of what came of it
    asked(approval, sight)         the same, and the question about it
    page(name, rest)               the next of what was cut, and the question again
    written(input)                 its input as a text to be edited, which `edited` reads

Rules: no control character of a model or a tool gets through, and whatever is left out is counted, as
somebody decides by what is shown. What was cut is at hand whole, so that it is seen before it is allowed.
What is shown at a time is bounded by what a screen holds, and then by what a terminal scrolls back.
This file must never know sockets, terminals or how files are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from cortexfs.chat import diffs
from cortexfs.chat.diffs import Read
from cortexfs.core import frames, jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import counted, escaped, one_line, within
from cortexfs.core.talk import refusals

BRIEF = 200  # characters of what a tool is called with
LONG = 1000  # and where somebody is to decide about it
HINT = " (not all of it is shown: y shows more first)"
RESULT_LINES = 8  # of what a tool gave
MAX_LINE = 400  # characters of a line of a command, a change or a result
LEAST_ROWS = 6  # that a change gets however small the screen is
AROUND = 8  # rows of a screen that the question and the input line take
SCROLLED = 500  # rows that any terminal keeps for who scrolls back
COLUMNS = 80  # of a screen, for how many rows a long line takes

Kind: TypeAlias = Literal[
    "answer", "end", "other", "note", "error", "question", "progress",
    "call", "result", "failed", "code", "place", "same", "added", "removed",
]  # fmt: skip


class Show(NamedTuple):
    """Something for the screen. `answer` is a piece of text that goes on, until `end`."""

    kind: Kind
    text: str = ""


class ShownCall(NamedTuple):
    """The shown part of a call, and the rest that did not fit, as it is: nothing there is escaped."""

    shows: list[Show]
    rest: list[Show]


def _blind(path: str) -> bytes:
    raise FileNotFoundError(path)


class Surroundings(NamedTuple):
    """The person's surroundings: files, and how much of the screen there is."""

    read: Read = _blind
    rows: Callable[[], int] = lambda: 24


def called(name: str, given: Any, sight: Surroundings) -> ShownCall:
    """A call, with the command or the change that it is about. What its line leaves out is no rest: the
    question about it has a longer one."""
    body = _body(name, given, sight.read)
    shows, rest = _fitting(body, sight.rows())
    return ShownCall([Show("call", line(name, _rest(name, given, body), BRIEF)), *shows], rest)


def below(shows: list[Show]) -> list[Show]:
    """Returns a call as it stands below the one whose program makes it."""
    return [Show(kind, f"  {text}") for kind, text in shows]


def asked(approval: frames.Approval, sight: Surroundings, unseen: list[Show] | None) -> ShownCall:
    """The question, in a line that counts what it leaves out, below what it is about. Where that is shown
    already, `unseen` is what was cut there."""
    name, given = approval.name, approval.input
    body = _body(name, given, sight.read if unseen is None else _blind)
    left = _rest(name, given, body)
    reason, effects = (" ".join(text.split()) for text in (approval.reason, ", ".join(approval.effects)))
    shows, rest = _fitting(body, sight.rows()) if unseen is None else ([], [*unseen])
    said = _about(left) + (f" ({effects})" if effects and not reason else "")
    if any(len(part) > LONG for part in (said, reason)):
        rest.append(Show("code", f"{_sentence(reason)} Allow {one_line(name)}{said}?"))
    why = [Show("note", _sentence(_counting(reason, LONG)))] if reason else []
    told = f"Allow {one_line(name)}{_counting(said, LONG)}?{HINT if rest else ''}"
    above = [Show("call", line(name, left, BRIEF)), *shows] if shows else []
    return ShownCall([*above, *why, Show("question", told)], rest)


def page(name: str, rest: list[Show]) -> ShownCall:
    """The next of what was cut, with the question again, and what is left then."""
    room, shown, left = SCROLLED, [], rest[::-1]
    while left and room > 0:
        kind, text = left.pop()
        if len(text) > MAX_LINE:
            left.append(Show(kind, text[MAX_LINE:]))
        shown.append(Show(kind, f"  {_plain(text[:MAX_LINE])}"))
        room -= 1 + len(shown[-1].text) // COLUMNS
    if left:
        shown.append(Show("note", f"  ... {counted(len(left), 'more line')}"))
    question = Show("question", f"Allow {one_line(name)}?{HINT if left else ''}")
    return ShownCall([*shown, question], left[::-1])


def resulted(frame: frames.ToolResult, is_apart: bool) -> list[Show]:
    """Returns a call's result, named where it failed or other things have been shown since the call."""
    kind: Kind = "failed" if frame.is_error else "result"
    named = [Show(kind, f"{one_line(frame.name)}:")] if is_apart and not frame.is_error else []
    text = (f"{frame.name}: {refusals.told(frame)}" if frame.is_error else frame.output).rstrip("\n")
    lines = text.split("\n", RESULT_LINES)
    told = [Show(kind, f"  {_cut(each)}") for each in lines[:RESULT_LINES]]
    if len(lines) > RESULT_LINES:
        told.append(Show(kind, f"  ... {counted(lines[-1].count(chr(10)) + 1, 'more line')}"))
    return [*named, *told] if text else [*named, Show(kind, "  (nothing)")]


def line(name: str, given: Any, most: int) -> str:
    """A call as a line: fs.read path=README.md."""
    return f"{one_line(name)} {_counting(_said(given), most)}".rstrip()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _about(given: Any) -> str:
    """Returns the input of a call, as a question goes on with it: " on app.py with mode=append"."""
    if isinstance(given, dict) and isinstance(path := given.get("path"), str):
        return f" on {_value(path)}{_about({key: given[key] for key in given if key != 'path'})}"
    return f" with {said}" if (said := _said(given)) else ""


def _said(given: Any) -> str:
    """Returns the input of a call, as it would stand in a line."""
    if isinstance(given, dict):
        return " ".join(f"{_value(key)}={_value(value)}" for key, value in given.items())
    return given if isinstance(given, str) else _json(given)


def _counting(text: str, most: int) -> str:
    """As a part of a line; what is left out is counted."""
    more = len(text) - most
    return within(text[:most]) + (f" ... and {more:,} characters more" if more > 0 else "")


def _value(value: Any) -> str:
    """As JSON, but for words that cannot be taken for anything else."""
    is_word = isinstance(value, str) and value and not any(char in ' "={}[],' for char in value)
    return value if is_word and within(value) == value else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# What of a call is shown below its line.
_BELOW = {
    "shell.exec": ("cmd",),
    "fs.write": ("content",),
    "fs.replace": ("old", "new", "diff"),
}


def _rest(name: str, given: Any, body: list[Show] | None) -> Any:
    """Returns the rest of the line."""
    return given if body is None else {key: value for key, value in given.items() if key not in _BELOW[name]}


def _body(name: str, given: Any, read: Read) -> list[Show] | None:
    """The lines below a call; None where it is another call, or not as it should be."""
    if name not in _BELOW or not isinstance(given, dict):
        return None
    if name == "shell.exec":
        command = given.get("cmd")
        return [Show("code", each) for each in command.split("\n")] if isinstance(command, str) else None
    change = diffs.of(name, given, read)
    return None if change is None else [Show(_SIDES[each.side], each.text) for each in change]


_SIDES: dict[diffs.Side, Kind] = {"@": "place", " ": "same", "+": "added", "-": "removed", "!": "note"}


def _fitting(body: list[Show] | None, rows: int) -> ShownCall:
    """As much of it as a screen holds together with the question about it; the rest begins with the first
    line that is not whole."""
    room, lines = max(rows - AROUND, LEAST_ROWS), body or []
    shown = [Show(show.kind, f"  {_cut(show.text)}") for show in lines[:room]]
    if (more := len(lines) - room) > 0:
        shown.append(Show("note", f"  ... {counted(more, 'more line')}"))
    whole = next((number for number, each in enumerate(lines[:room]) if len(each.text) > MAX_LINE), room)
    return ShownCall(shown, lines[whole:])


def _cut(text: str) -> str:
    """A line of somebody else's text, with its own white space."""
    more = len(text) - MAX_LINE
    cut = f" ... and {more:,} characters more" if more > 0 else ""
    return _plain(text[:MAX_LINE]) + cut


def _plain(text: str) -> str:
    return escaped(text.replace("\t", "    "))


def written(value: Any) -> str:
    """As JSON with a line for each part; what would not be seen is written as JSON escapes it."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return escaped(text, lambda char: json.dumps(char)[1:-1])


def edited(given: str) -> dict[str, Any]:
    """The input that a text is; EINVAL where it is none."""
    value = jsontext.decode(given, "what you wrote")
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"what you wrote: expected a JSON object, got {jsontext.type_name(value)}")
    return value
