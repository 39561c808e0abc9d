"""The runs of a session, read from its log: a `LoggedRun` for each message.

Main path: `read_all` reads logs, each from the place where the last reading ended. `runs_of` returns the runs
of a log, and the place for the next reading: after the last run, or at the first run that is not over.

Rules: a log is read as its user may, through the mount. Its lines are untrusted: a line that is no event of
ours is skipped. Of a text, MOST characters are kept. This file must never know an index or a terminal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from cortexfs.core import frames
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.models.usage import bounded

READERS = 8
HEAD = 128  # bytes of a log's first line; it has the id of a run, so it differs for each log
MOST = 1 << 20  # characters of a question or answer that a search can find
# The lines that are used here. Most lines are deltas, whose text comes again in whole messages.
_TELLING = tuple(b'{"type":"%b"' % name for name in (b"start", b"message", b"usage", b"error", b"done"))


class LoggedRun(msgspec.Struct):
    """A message and its answer. `start` and `end` are its place in the log."""

    run: str
    start: int
    end: int = 0
    time: float = 0
    model: str = ""
    agent: str = ""
    status: str = "active"
    input_tokens: int = 0
    output_tokens: int = 0
    question: str = ""
    answer: str = ""


class _Text(msgspec.Struct):
    text: str = ""


class _Event(msgspec.Struct):
    type: str
    run: str = ""
    ts: str = ""
    model: str = ""
    agent: str = ""
    role: str = ""
    content: list[_Text] = []
    input_tokens: int = 0
    output_tokens: int = 0
    status: str = ""
    code: str = ""
    message: str = ""


_events = msgspec.json.Decoder(_Event)


class SessionLog(NamedTuple):
    """The part of a session's log from one place on, at the time of reading."""

    mtime: int
    size: int
    head: bytes
    is_other: bool  # another log than the one with the known head: it was read from its beginning
    runs: list[LoggedRun]
    next: int


def read_all(logs: Sequence[tuple[Path, int, bytes]]) -> Iterable[SessionLog | None]:
    """Read logs, each from its own place. Each read waits for the daemon, so many are read at once."""
    if len(logs) < READERS:
        return [read(*log) for log in logs]
    from concurrent.futures import ThreadPoolExecutor  # this import takes longer than a few logs

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda log: read(*log), logs))


def read(path: Path, start: int, head: bytes) -> SessionLog | None:
    """Returns the log from that place on, or None if it is gone."""
    try:
        with open(path, "rb") as file:
            status, first = os.fstat(file.fileno()), file.readline(HEAD)
            is_other = first != head
            runs, following = runs_of(file, 0 if is_other else start)
            return SessionLog(status.st_mtime_ns, status.st_size, first, is_other, runs, following)
    except OSError:
        return None


def runs_of(
    log: BinaryIO, start: int, stop: int | None = None, most: int = MOST
) -> tuple[list[LoggedRun], int]:
    """Returns the runs of a log between two places, and the place for the next reading."""
    found: dict[str, LoggedRun] = {}
    end = start
    for offset, line in _lines(log, start, stop):
        end = offset + len(line)
        if line.startswith(_TELLING) and (event := _event(line)):
            if event.type == "start":
                found[event.run] = LoggedRun(event.run, offset, time=_seconds(event.ts))
            if run := found.get(event.run):
                _take(run, event, most)
                run.end = end
    runs = list(found.values())
    return runs, min([run.start for run in runs if run.status == "active"], default=end)


def _take(run: LoggedRun, event: _Event, most: int) -> None:
    match event.type:
        case "start":
            run.model, run.agent = event.model, event.agent
        case "message":
            text = "".join(part.text for part in event.content)
            if event.role == "user":
                run.question = _joined(run.question, text)[:most]
            else:
                run.answer = _joined(run.answer, text)[:most]
        case "usage":
            run.model = event.model or run.model
            run.input_tokens += bounded(event.input_tokens)
            run.output_tokens += bounded(event.output_tokens)
        case "error":
            run.answer = _joined(run.answer, f"{event.code}: {event.message}")[:most]
        case _:
            run.status = event.status or "error"


def _joined(before: str, text: str) -> str:
    return f"{before}\n{text}" if before else text


def _event(line: bytes) -> _Event | None:
    try:
        return _events.decode(line)
    except UNREADABLE:
        return None


def _lines(log: BinaryIO, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
    """Yields the whole lines of a log, with their places."""
    log.seek(start)
    while (stop is None or start < stop) and (line := log.readline(frames.MAX_LINE)).endswith(b"\n"):
        yield start, line
        start += len(line)


def _seconds(ts: str) -> float:
    """Returns the time of an event; 0 if it has none, as in earlier versions."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(ts).timestamp()
    return 0.0
