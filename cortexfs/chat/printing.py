"""A talk as plain text: for pipes, for simple terminals, and for `ctx send`.

Rules: answers go to stdout, unchanged if a program reads them, and escaped if a terminal shows them. All else
goes to stderr. The work of tools is shown only on a terminal, or if it failed. Characters that a stream
cannot encode are replaced.
This file must never know conversations.
"""

from __future__ import annotations

import io
import os
from typing import TextIO

from cortexfs.chat.calls import Kind, Show
from cortexfs.core.safe_text import escaped, prose, quoted

# The mark before a line: one in Unicode, and one in ASCII, which is also for screen readers.
MARKS: dict[Kind, tuple[str, str]] = {
    "progress": ("\N{MIDDLE DOT} ", "- "),
    "call": ("\N{BLACK RIGHT-POINTING SMALL TRIANGLE} ", "call: "),
}

DIM, RED, GREEN, YELLOW, CYAN, BOLD, PLAIN = "2", "31", "32", "33", "36", "1", ""
# The colour of a line.
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


SHOWN_LINES, SHOWN_TEXT = 12, 2000  # lines and characters of a person's message that are shown


def uttered(text: str) -> list[Show]:
    """Returns the beginning of a person's message, as its writer has seen the rest."""
    head = "\n".join(text[:SHOWN_TEXT].split("\n")[:SHOWN_LINES])
    shows = [Show("other", quoted(head))]
    if more := text[len(head) :].count("\n"):
        shows.append(Show("note", f"  and {more:,} lines more"))
    elif len(head) < len(text):
        shows.append(Show("note", f"  and {len(text) - len(head):,} characters more"))
    return shows


class Printer:
    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._out_is_terminal = out.isatty()
        self._chatty = err.isatty()  # a person looks at stderr, so the work of tools is shown too
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
    """Returns a line with its mark, as a stream of that encoding can show it."""
    plain, ascii_ = MARKS.get(show.kind, ("", ""))
    return (plain if encoding.lower() in ("utf-8", "utf8") else ascii_) + show.text


def styled(kind: Kind, text: str, colour: bool) -> list[str]:
    """Returns the lines of a text, safe to print, each in the colour of its kind."""
    style = STYLES[kind] if colour else PLAIN
    lines = escaped(text).split("\n")
    return [f"\x1b[{style}m{line}\x1b[0m\n" if style and line else f"{line}\n" for line in lines]


def tolerant(stream: TextIO, errors: str = "replace") -> None:
    """Let a stream replace what it cannot encode or decode."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=errors)
