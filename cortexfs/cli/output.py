"""The output of commands: tables, JSON, colour and one-line reports.

Rules: data goes to stdout and everything about the work to stderr. Colour and cut lines are for
terminals alone (NO_COLOR and TERM=dumb are obeyed). Text that came from an object is never printed
with its control characters: a tool's description must not move the reader's cursor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

from cortexfs.cli import streams
from cortexfs.core.safe_text import within

GREEN, YELLOW, RED = "32", "33", "31"
COLOURS = {
    "ok": GREEN,
    "ready": GREEN,
    "loaded": GREEN,
    "warn": YELLOW,
    "disabled": YELLOW,
    "fail": RED,
    "broken": RED,
}


def say(text: str) -> None:
    """One line about the work, for a person."""
    print(printable(text), file=sys.stderr, flush=True)


def emit(value: Any) -> None:
    """One JSON value on stdout."""
    import json  # only those who ask for JSON pay for it

    print(json.dumps(value, indent=2, ensure_ascii=not streams.takes_all()))


def printable(text: str) -> str:
    """`text` with control characters and others that are not seen for what they are made visible."""
    return within(text)


def colourful(stream: IO[str]) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> None:
    """Print a table. With `widths` (one a column, the last one's ignored) rows are printed as they come."""
    if not widths:
        rows = list(rows)
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    widths = [max(width, len(head)) for width, head in zip(widths, heads, strict=True)]
    room, colour = _room(), colourful(sys.stdout)
    _row([head.upper() for head in heads], widths, room, False)
    for row in rows:
        _row(row, widths, room, colour)


def _row(row: Sequence[str], widths: Sequence[int], room: int, colour: bool) -> None:
    cells = [printable(cell) for cell in row]
    cells[:-1] = [cell.ljust(width) for cell, width in zip(cells[:-1], widths[:-1], strict=True)]
    left = room - sum(map(len, cells[:-1])) - 2 * (len(cells) - 1)
    if room and len(cells[-1]) > left > 1:
        cells[-1] = cells[-1][: left - 1] + "…"
    print("  ".join(_painted(cell) if colour else cell for cell in cells).rstrip())


def _painted(cell: str) -> str:
    code = COLOURS.get(cell.strip())
    return f"\x1b[{code}m{cell}\x1b[0m" if code else cell


def _room() -> int:
    """How wide a line may be: the terminal's width, or 0 for no limit."""
    if not sys.stdout.isatty():
        return 0
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return 80
