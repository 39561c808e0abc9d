"""The standard streams of commands: tables, JSON, colour, one-line reports, and questions to a person.

Rules: data goes to stdout and everything about the work to stderr. Colour and cut lines are for
terminals alone (NO_COLOR and TERM=dumb are obeyed); a column that says why is never cut. Text that came
from an object is never printed with its control characters: a tool's description must not move the
reader's cursor. A descriptor that the caller closed becomes /dev/null, so that nothing which is opened
later takes its number and is written into.
What the locale cannot show is replaced, and is no failure.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

from cortexfs.cli import progress
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.safe_text import within

STREAMS = {"stdin": (0, "r"), "stdout": (1, "w"), "stderr": (2, "w")}
COLOURS = {
    **dict.fromkeys(("ok", "ready", "loaded"), "32"),  # green
    **dict.fromkeys(("warn", "disabled"), "33"),  # yellow
    **dict.fromkeys(("fail", "broken"), "31"),  # red
}


def prepare() -> None:
    for name, (number, mode) in STREAMS.items():
        if getattr(sys, name) is None:  # so Python tells that it was closed
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr does so by itself
        sys.stdout.reconfigure(errors="replace")


def say(text: str) -> None:
    """One line about the work, for a person."""
    with progress.apart():
        print(within(text), file=sys.stderr, flush=True)


def sure(question: str) -> bool:
    """Ask before something is removed for good; where nobody can answer, say what to give instead."""
    if not sys.stdin.isatty():
        raise Fault("EINVAL", "nobody can be asked here; say --yes")
    print(f"{within(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def emit(value: Any) -> None:
    """One JSON value on stdout."""
    import json  # only those who ask for JSON pay for it

    takes_all = sys.stdout.encoding.lower() in ("utf-8", "utf8")
    print(json.dumps(value, indent=2, ensure_ascii=not takes_all))


def listed(as_json: bool, values: Any, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    """Print the values as JSON, or a table of these rows; the exit status of a list."""
    if as_json:
        emit(values)
    else:
        table(heads, rows)
    return EXIT_OK


def colourful(stream: IO[str]) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and not dumb()


def dumb() -> bool:
    """The terminal shows lines and no more: it is read aloud, or by a program."""
    return os.environ.get("TERM") == "dumb"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> None:
    """Print a table. With `widths` (one a column, the last one's ignored) rows are printed as they come."""
    if not widths:
        rows = list(rows)
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    widths = [max(width, len(head)) for width, head in zip(widths, heads, strict=True)]
    room = 0  # how wide a line may be: 0 for no limit
    is_aloud = sys.stdout.isatty() and dumb()
    if sys.stdout.isatty() and not is_aloud and heads[-1] != "why":
        try:
            room = os.get_terminal_size(sys.stdout.fileno()).columns
        except OSError:
            room = 80
    colour = colourful(sys.stdout)
    _row([head.upper() for head in heads], widths, room, False)
    for row in rows:
        # Who hears a row counts its words: an empty cell would give its place to the next one.
        _row([cell or "-" for cell in row] if is_aloud else row, widths, room, colour)


def _row(row: Sequence[str], widths: Sequence[int], room: int, colour: bool) -> None:
    cells = [within(cell) for cell in row]
    cells[:-1] = [cell.ljust(width) for cell, width in zip(cells[:-1], widths[:-1], strict=True)]
    left = room - sum(map(len, cells[:-1])) - 2 * (len(cells) - 1)
    if room and len(cells[-1]) > left > 1:
        cells[-1] = cells[-1][: left - 1] + "…"
    for place, cell in enumerate(cells):
        if colour and (code := COLOURS.get(cell.strip())):
            cells[place] = f"\x1b[{code}m{cell}\x1b[0m"
    print("  ".join(cells).rstrip())
