"""Calls of tools and their results, as lines for a person who may have to decide about a call.

    called(name, input, sight)     a line, and below it the command or the change as a unified diff
    resulted(frame)                the first lines of the result
    question_of(approval, sight)         the lines of `called`, and the question about the call
    page(name, rest)               the next part of the cut text, and the question again
    written(input)                 the input as a text for the person to edit, which `edited` reads

Rules: no control character of a model or a tool reaches the screen. Text that is left out is counted, as a
person decides by the text that is shown. The cut text is kept whole, so that the person sees it before
allowing the call. The first page is bounded by the screen, later ones by what a terminal scrolls back.
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

BRIEF = 200  # characters of a call's input in the line of the call
LONG = 1000  # characters of it in a question
HINT = " (not all of it is shown: y shows more first)"
RESULT_LINES = 8  # lines of a result
MAX_LINE = 400  # characters of a line of a command, a change or a result
LEAST_ROWS = 6  # rows of a change that are shown on any screen, however small
AROUND = 8  # rows of a screen that the question and the input line take
SCROLLED = 500  # rows that any terminal keeps for scrolling back
COLUMNS = 80  # of a screen, to count the rows of a long line

Kind: TypeAlias = Literal[
    "answer", "end", "other", "note", "error", "question", "progress",
    "call", "result", "failed", "code", "place", "same", "added", "removed",
]  # fmt: skip


class Show(NamedTuple):
    """Something for the screen. Shows of the kind `answer` are pieces of one text, until `end`."""

    kind: Kind
    text: str = ""


class ShownCall(NamedTuple):
    """The lines of a call that are shown, and the rest that did not fit. The rest is not escaped."""

    shows: list[Show]
    rest: list[Show]


def _blind(path: str) -> bytes:
    raise FileNotFoundError(path)


class Surroundings(NamedTuple):
    """The person's surroundings: a reader of files, and the number of rows of the screen."""

    read: Read = _blind
    rows: Callable[[], int] = lambda: 24


def called(name: str, input_: Any, sight: Surroundings) -> ShownCall:
    """Returns the lines of a call, with its command or change. Input that the line of the call leaves out is
    not part of the rest: the question about the call has a longer line."""
    body = _body(name, input_, sight.read)
    shows, rest = _fitting(body, sight.rows())
    return ShownCall([Show("call", line(name, _rest(name, input_, body), BRIEF)), *shows], rest)


def below(shows: list[Show]) -> list[Show]:
    """Returns the lines of a call that a program makes, indented below the call of that program."""
    return [Show(kind, f"  {text}") for kind, text in shows]


def question_of(approval: frames.Approval, sight: Surroundings, unseen: list[Show] | None) -> ShownCall:
    """Returns the question, in one line that counts what it leaves out, below the lines of the call. If those
    lines are shown already, `unseen` is the part of them that was cut."""
    name, input_ = approval.name, approval.input
    body = _body(name, input_, sight.read if unseen is None else _blind)
    others = _rest(name, input_, body)
    reason, effects = (" ".join(text.split()) for text in (approval.reason, ", ".join(approval.effects)))
    shows, rest = _fitting(body, sight.rows()) if unseen is None else ([], [*unseen])
    summary = _about(others) + (f" ({effects})" if effects and not reason else "")
    if any(len(part) > LONG for part in (summary, reason)):
        rest.append(Show("code", f"{_sentence(reason)} Allow {one_line(name)}{summary}?"))
    why = [Show("note", _sentence(_counting(reason, LONG)))] if reason else []
    question = f"Allow {one_line(name)}{_counting(summary, LONG)}?{HINT if rest else ''}"
    above = [Show("call", line(name, others, BRIEF)), *shows] if shows else []
    return ShownCall([*above, *why, Show("question", question)], rest)


def page(name: str, rest: list[Show]) -> ShownCall:
    """Returns the next part of the cut text with the question again, and the part that is left then."""
    room, shows, lines = SCROLLED, [], rest[::-1]
    while lines and room > 0:
        kind, text = lines.pop()
        if len(text) > MAX_LINE:
            lines.append(Show(kind, text[MAX_LINE:]))
        shows.append(Show(kind, f"  {_plain(text[:MAX_LINE])}"))
        room -= 1 + len(shows[-1].text) // COLUMNS
    if lines:
        shows.append(Show("note", f"  ... {counted(len(lines), 'more line')}"))
    question = Show("question", f"Allow {one_line(name)}?{HINT if lines else ''}")
    return ShownCall([*shows, question], lines[::-1])


def resulted(frame: frames.ToolResult, is_apart: bool) -> list[Show]:
    """Returns the lines of a result, named if it failed or if other things were shown since its call."""
    kind: Kind = "failed" if frame.is_error else "result"
    title = [Show(kind, f"{one_line(frame.name)}:")] if is_apart and not frame.is_error else []
    text = (f"{frame.name}: {refusals.sentence(frame)}" if frame.is_error else frame.output).rstrip("\n")
    lines = text.split("\n", RESULT_LINES)
    shows = [Show(kind, f"  {_cut(each)}") for each in lines[:RESULT_LINES]]
    if len(lines) > RESULT_LINES:
        shows.append(Show(kind, f"  ... {counted(lines[-1].count(chr(10)) + 1, 'more line')}"))
    return [*title, *shows] if text else [*title, Show(kind, "  (nothing)")]


def line(name: str, input_: Any, most: int) -> str:
    """Returns a call as one line: fs.read path=README.md."""
    return f"{one_line(name)} {_counting(_summary(input_), most)}".rstrip()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _about(input_: Any) -> str:
    """Returns the input of a call as the end of a question: " on app.py with mode=append"."""
    if isinstance(input_, dict) and isinstance(path := input_.get("path"), str):
        return f" on {_value(path)}{_about({key: input_[key] for key in input_ if key != 'path'})}"
    return f" with {summary}" if (summary := _summary(input_)) else ""


def _summary(input_: Any) -> str:
    """Returns the input of a call as text for a line."""
    if isinstance(input_, dict):
        return " ".join(f"{_value(key)}={_value(value)}" for key, value in input_.items())
    return input_ if isinstance(input_, str) else _json(input_)


def _counting(text: str, most: int) -> str:
    """Returns at most `most` characters of `text`, and counts the others."""
    more = len(text) - most
    return within(text[:most]) + (f" ... and {more:,} characters more" if more > 0 else "")


def _value(value: Any) -> str:
    """Returns `value` as JSON. A word that cannot be mistaken for anything else has no quotes."""
    is_word = isinstance(value, str) and value and not any(char in ' "={}[],' for char in value)
    return value if is_word and within(value) == value else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# By tool: the parts of its input that are shown below the line of a call.
_BELOW = {
    "shell.exec": ("cmd",),
    "fs.write": ("content",),
    "fs.replace": ("old", "new", "diff"),
}


def _rest(name: str, input_: Any, body: list[Show] | None) -> Any:
    """Returns the part of the input that the line of the call shows."""
    return (
        input_ if body is None else {key: value for key, value in input_.items() if key not in _BELOW[name]}
    )


def _body(name: str, input_: Any, read: Read) -> list[Show] | None:
    """Returns the lines below a call. Returns None for any other tool, and for an input that is not valid."""
    if name not in _BELOW or not isinstance(input_, dict):
        return None
    if name == "shell.exec":
        command = input_.get("cmd")
        return [Show("code", each) for each in command.split("\n")] if isinstance(command, str) else None
    change = diffs.of(name, input_, read)
    return None if change is None else [Show(_SIDES[each.side], each.text) for each in change]


_SIDES: dict[diffs.Side, Kind] = {"@": "place", " ": "same", "+": "added", "-": "removed", "!": "note"}


def _fitting(body: list[Show] | None, rows: int) -> ShownCall:
    """Returns as many lines as fit on a screen together with the question. The rest begins with the first
    line that is not shown whole."""
    room, lines = max(rows - AROUND, LEAST_ROWS), body or []
    shows = [Show(show.kind, f"  {_cut(show.text)}") for show in lines[:room]]
    if (more := len(lines) - room) > 0:
        shows.append(Show("note", f"  ... {counted(more, 'more line')}"))
    first_cut = next((number for number, each in enumerate(lines[:room]) if len(each.text) > MAX_LINE), room)
    return ShownCall(shows, lines[first_cut:])


def _cut(text: str) -> str:
    """Returns a line of untrusted text, escaped and cut, with its own white space."""
    more = len(text) - MAX_LINE
    cut = f" ... and {more:,} characters more" if more > 0 else ""
    return _plain(text[:MAX_LINE]) + cut


def _plain(text: str) -> str:
    return escaped(text.replace("\t", "    "))


def written(value: Any) -> str:
    """Returns `value` as JSON, each part on its own line. Invisible characters become JSON escapes."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return escaped(text, lambda char: json.dumps(char)[1:-1])


def edited(text: str) -> dict[str, Any]:
    """Returns the input that the edited text holds. Raises EINVAL if it is not a JSON object."""
    value = jsontext.decode(text, "what you wrote")
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"what you wrote: expected a JSON object, got {jsontext.type_name(value)}")
    return value
