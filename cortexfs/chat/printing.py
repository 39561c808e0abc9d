"""A talk as plain text: for pipes, for terminals that can do no more, and for `ctx send`.

Rules: answers go to stdout, as they are where a program reads and escaped where a terminal shows them;
everything else goes to stderr, and what tools do only where a person looks or it failed. What a stream cannot
encode is replaced.
This file must never know conversations.
"""

from __future__ import annotations

import io
import os
from typing import TextIO

from cortexfs.chat.calls import Kind, Show
from cortexfs.core.safe_text import prose, quoted

# With which mark something is told: one for those who see Unicode, and one for others and to be read aloud.
MARKS: dict[Kind, tuple[str, str]] = {
    "progress": ("\N{MIDDLE DOT} ", "- "),
    "call": ("\N{BLACK RIGHT-POINTING SMALL TRIANGLE} ", "call: "),
}

DIM, RED, GREEN, YELLOW, CYAN, BOLD, PLAIN = "2", "31", "32", "33", "36", "1", ""
# And in which colours.
STYLES: dict[Kind, str] = {
    "note": DIM,
    "progress": DIM,
    "call": DIM,
    "result": DIM,
    "same": DIM,
    "code": PLAIN,
    "place": CYAN,
    "added": GREEN,
    "removed": RED,
    "failed": RED,
    "error": RED,
    "question": YELLOW,
    "other": BOLD,
}


SHOWN_LINES, SHOWN_TEXT = 12, 2000  # lines and characters of what a person said


def uttered(text: str) -> list[Show]:
    """A person's message: the beginning of it, as whoever pasted a page has seen it."""
    shown = "\n".join(text[:SHOWN_TEXT].split("\n")[:SHOWN_LINES])
    said = [Show("other", quoted(shown))]
    if more := text[len(shown) :].count("\n"):
        said.append(Show("note", f"  and {more:,} lines more"))
    elif len(shown) < len(text):
        said.append(Show("note", f"  and {len(text) - len(shown):,} characters more"))
    return said


class Printer:
    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._out_is_terminal = out.isatty()
        self._chatty = err.isatty()  # where a person looks, what tools do is told as well
        self._encoding = "ascii" if os.environ.get("TERM") == "dumb" else err.encoding
        self._mid_line = False
        for stream in (out, err):
            tolerant(stream)

    def show(self, show: Show) -> None:
        match show.kind:
            case "answer" if show.text:
                self._out.write(prose(show.text) if self._out_is_terminal else show.text)
                self._out.flush()
                self._mid_line = not show.text.endswith("\n")
            case "answer":
                pass
            case "end":
                self._break()
            case "other":
                self._break()
                self._out.write(quoted(show.text) + "\n")
                self._out.flush()
            case kind if self._chatty or kind in ("error", "failed", "question"):
                self._break()
                print(marked(show, self._encoding), file=self._err, flush=True)

    def _break(self) -> None:
        if self._mid_line:
            self._out.write("\n")
            self._out.flush()
            self._mid_line = False


def marked(show: Show, encoding: str) -> str:
    """A line about what goes on, as a stream of that encoding can show it."""
    plain, ascii_ = MARKS.get(show.kind, ("", ""))
    return (plain if encoding.lower() in ("utf-8", "utf8") else ascii_) + show.text


def tolerant(stream: TextIO, errors: str = "replace") -> None:
    """Let a stream replace what it cannot encode or decode."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=errors)
