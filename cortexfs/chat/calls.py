"""What a tool is called with and what it gave, as lines for a person who may have to decide about it.

    called(name, input, sight)     a line, and below it the command or the change as a unified diff
    resulted(frame)                the first lines of what came of it
    asked(approval, sight)         the same, and the question about it

Rules: no control character of a model or a tool gets through, and whatever is left out is counted, as
somebody decides by what is shown. Work is bounded by what a screen holds.
This file must never know sockets, terminals or how files are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from cortexfs.chat import changes
from cortexfs.chat.changes import Read
from cortexfs.core import frames
from cortexfs.core.plain import escaped, one_line

BRIEF = 200  # characters of what a tool is called with
LONG = 1000  # and where somebody is to decide about it
HINT = "; [e]dit shows the whole call"
RESULT_LINES = 8  # of what a tool gave
MAX_LINE = 400  # characters of a line of a command, a change or a result
LEAST_ROWS = 6  # that a change gets however small the screen is
AROUND = 8  # rows of a screen that the question and the input line take

Kind: TypeAlias = Literal[
    "answer", "end", "other", "note", "error", "question", "progress",
    "call", "result", "failed", "code", "place", "same", "added", "removed",
]  # fmt: skip


class Show(NamedTuple):
    """Something for the screen. `answer` is a piece of text that goes on, until `end`."""

    kind: Kind
    text: str = ""


def _blind(path: str) -> bytes:
    raise FileNotFoundError(path)


class Sight(NamedTuple):
    """What there is to be seen where the person is: files, and how much of the screen."""

    read: Read = _blind
    rows: Callable[[], int] = lambda: 24


def called(name: str, given: Any, sight: Sight) -> list[Show]:
    """A call, with the command or the change that it is about."""
    body = _body(name, given, sight.read)
    return [Show("call", line(name, _rest(name, given, body), BRIEF)), *_fitting(body, sight.rows())]


def asked(approval: frames.Approval, sight: Sight, is_shown: bool) -> list[Show]:
    """The question, in a line that counts what it leaves out, below what it is about if that is not shown."""
    name, given = approval.name, approval.input
    body = _body(name, given, _blind if is_shown else sight.read)
    rest = _rest(name, given, body)
    effects = f" ({one_line(', '.join(approval.effects))})" if approval.effects else ""
    reason = f": {one_line(approval.reason)}" if approval.reason else ""
    question = Show("question", f"may it call {line(name, rest, LONG)}{effects}{reason}?")
    if is_shown or body is None:
        return [question]
    return [Show("call", line(name, rest, BRIEF)), *_fitting(body, sight.rows(), HINT), question]


def resulted(frame: frames.ToolResult, is_apart: bool) -> list[Show]:
    """What a call gave, named where other things have been shown since it was made."""
    kind: Kind = "failed" if frame.is_error else "result"
    named = [Show(kind, f"{one_line(frame.name)}:")] if is_apart else []
    text = frame.output.rstrip("\n")
    lines = text.split("\n", RESULT_LINES)
    told = [Show(kind, f"  {_cut(each)}") for each in lines[:RESULT_LINES]]
    if len(lines) > RESULT_LINES:
        told.append(Show(kind, f"  ... {_counted(lines[-1].count(chr(10)) + 1, 'more line')}"))
    return [*named, *told] if text else [*named, Show(kind, "  (nothing)")]


def line(name: str, given: Any, most: int) -> str:
    """A call as a line: fs.read path=README.md."""
    if isinstance(given, dict):
        said = " ".join(f"{_value(key)}={_value(value)}" for key, value in given.items())
    else:
        said = given if isinstance(given, str) else _json(given)
    more = len(said) - most
    cut = f" ... and {more:,} characters more" if more > 0 else ""
    return f"{one_line(name)} {_within(said[:most])}".rstrip() + cut


def _within(text: str) -> str:
    """As a part of one line, with all that it holds."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def _value(value: Any) -> str:
    """As JSON, but for words that cannot be taken for anything else."""
    is_word = isinstance(value, str) and value and not any(char in ' "={}[],' for char in value)
    return value if is_word and value.isprintable() else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# What of a call is shown below its line.
_BELOW = {
    "shell.exec": ("cmd",),
    "fs.write": ("content",),
    "fs.replace": ("old", "new", "diff"),
}


def _rest(name: str, given: Any, body: list[Show] | None) -> Any:
    """What is said in the line."""
    return given if body is None else {key: value for key, value in given.items() if key not in _BELOW[name]}


def _body(name: str, given: Any, read: Read) -> list[Show] | None:
    """The lines below a call; None where it is another call, or not as it should be."""
    if name not in _BELOW or not isinstance(given, dict):
        return None
    if name == "shell.exec":
        command = given.get("cmd")
        return [Show("code", each) for each in command.split("\n")] if isinstance(command, str) else None
    change = changes.of(name, given, read)
    return None if change is None else [Show(_SIDES[each.side], each.text) for each in change]


_SIDES: dict[changes.Side, Kind] = {
    "@": "place",
    " ": "same",
    "+": "added",
    "-": "removed",
    "!": "note",
}


def _fitting(body: list[Show] | None, rows: int, hint: str = "") -> list[Show]:
    """As much of it as a screen holds together with the question about it."""
    room = max(rows - AROUND, LEAST_ROWS)
    lines = body or []
    shown = [Show(show.kind, f"  {_cut(show.text)}") for show in lines[:room]]
    if (more := len(lines) - room) > 0:
        shown.append(Show("note", f"  ... {_counted(more, 'more line')}{hint}"))
    return shown


def _cut(text: str) -> str:
    """A line of somebody else's text, with its own white space."""
    more = len(text) - MAX_LINE
    cut = f" ... and {more:,} characters more" if more > 0 else ""
    return escaped(text[:MAX_LINE].replace("\t", "    ")) + cut


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
