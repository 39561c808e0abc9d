"""The standard streams of commands: tables, JSON, colour, one-line reports, and questions to a person.

Rules: data goes to stdout and everything about the work to stderr. Only terminals get colour and cut lines
(NO_COLOR and TERM=dumb are obeyed); a column that gives reasons is never cut. Control characters in an
object's text are never printed: a tool's description must not move the reader's cursor. A descriptor that the
caller closed becomes /dev/null, so that no file opened later gets its number and receives the output. Output
to a closed stdout is an error, as it is lost; a closed stderr loses its lines quietly. Characters that the
locale cannot show are replaced, and cause no failure.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from cortexfs.cli import progress
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import within

STREAMS = {"stdin": (0, "r"), "stdout": (1, "w"), "stderr": (2, "w")}
OUTPUTS = ("jsonl", "text")  # the forms of an object's output
COLOURS = {
    **dict.fromkeys(("ok", "ready", "loaded"), "32"),  # green
    **dict.fromkeys(("warn", "disabled"), "33"),  # yellow
    **dict.fromkeys(("fail", "broken"), "31"),  # red
}


def prepare() -> None:
    for name, (number, mode) in STREAMS.items():
        if getattr(sys, name) is None:  # Python's sign of a closed stream
            opened = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase) and raw.fileno() == 1:
        # PYTHONUNBUFFERED: a write would fail in the midst of a command, and no flush would name the stream
        sys.stdout = os.fdopen(1, "w", encoding=sys.stdout.encoding, closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr replaces characters by default
        sys.stdout.reconfigure(errors="replace")


def form(option: str | None) -> str:
    """Returns the form of an object's output that an option or CTX_OUTPUT names; empty if none does."""
    chosen = option or os.environ.get("CTX_OUTPUT") or ""
    if chosen and chosen not in OUTPUTS:
        raise Fault("EINVAL", f"CTX_OUTPUT is {chosen!r}; it can be {' or '.join(OUTPUTS)}")
    return chosen


def say(text: str) -> None:
    """Print one line about the work, for a person. On a full disk it is lost, and the work goes on."""
    try:
        with progress.apart():
            print(within(text), file=sys.stderr, flush=True)
    except OSError as problem:
        to_nowhere(sys.stderr)
        if isinstance(problem, BrokenPipeError):
            raise


def to_nowhere(stream: IO[str]) -> None:
    """Lead a stream that failed to /dev/null, so that the flush at exit cannot fail aloud."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def sure(question: str) -> bool:
    """Ask before something is removed for good. If no person can answer, raise a Fault that names --yes."""
    if not sys.stdin.isatty():
        raise Fault("EINVAL", "this needs a yes, and there is no terminal to ask on; say --yes")
    print(f"{within(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def emit(value: Any) -> None:
    """Print one JSON value on stdout."""
    import json  # a slow import that only JSON needs

    takes_all = sys.stdout.encoding.lower() in ("utf-8", "utf8")
    print(json.dumps(value, indent=2, ensure_ascii=not takes_all))


def print_rows(
    as_json: bool,
    values: Any,
    heads: Sequence[str],
    rows: Iterable[Sequence[str] | Mapping[str, str]],
    nothing: str = "",
) -> None:
    """Print the values as JSON, or a table of these rows. Without rows, say `nothing` in its place."""
    if as_json:
        return emit(values)
    cells = [[row[head] for head in heads] if isinstance(row, Mapping) else row for row in rows]
    if cells or not nothing:
        table(heads, cells)
    else:
        say(nothing)


def colourful(stream: IO[str]) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and not dumb()


def dumb() -> bool:
    """Returns True if the terminal only shows lines: it is read aloud, or by a program."""
    return os.environ.get("TERM") == "dumb"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> None:
    """Print a table. With `widths` (one a column, the last is ignored), each row is printed as it comes."""
    if not widths:
        rows = list(rows)
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    widths = [max(width, len(head)) for width, head in zip(widths, heads, strict=True)]
    room = 0  # the width of a line; 0 for no limit
    is_aloud = sys.stdout.isatty() and dumb()
    if sys.stdout.isatty() and not is_aloud and heads[-1] != "why":
        try:
            room = os.get_terminal_size(sys.stdout.fileno()).columns
        except OSError:
            room = 80
    colour = colourful(sys.stdout)
    _row([head.upper() for head in heads], widths, room, False)
    for row in rows:
        # A listener counts the words of a row: "-" keeps an empty cell's place.
        _row([cell or "-" for cell in row] if is_aloud else row, widths, room, colour)


def _row(row: Sequence[str], widths: Sequence[int], room: int, colour: bool) -> None:
    cells = [within(cell) for cell in row]
    cells[:-1] = [cell.ljust(width) for cell, width in zip(cells[:-1], widths[:-1], strict=True)]
    space = room - sum(map(len, cells[:-1])) - 2 * (len(cells) - 1)
    if room and len(cells[-1]) > space > 1:
        cells[-1] = cells[-1][: space - 1] + "…"
    for place, cell in enumerate(cells):
        if colour and (code := COLOURS.get(cell.strip())):
            cells[place] = f"\x1b[{code}m{cell}\x1b[0m"
    print("  ".join(cells).rstrip())
