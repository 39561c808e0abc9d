"""The messages of a session and its newest events, as its files in the mount tell of them.

Rules: those of sessions.py. This file must never know which sessions there are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame

TAIL = 1 << 20  # bytes of a log in which a chat looks for what was said last
MESSAGES = 20


def messages(place: Path) -> Iterator[frames.Message]:
    """Returns the messages, oldest first; a line of the file is a frame without its type."""
    with open(place / "messages.jsonl", "rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                fields = msgspec.json.decode(line, type=dict[str, Any])
                yield msgspec.convert(fields | {"type": "message"}, frames.Message)


def last(place: Path) -> str | None:
    """The id of the last event that is there now."""
    past = tail(place)
    return past[-1].id if past else None


def tail(place: Path) -> list[AnyFrame]:
    """The newest events, as many as a chat looks at."""
    return [frame for _, frame in window(place)]


def window(place: Path, end: int | None = None) -> list[tuple[int, AnyFrame]]:
    """The events before this byte of the log, or before its end, each with the byte at which it begins: as
    many as a chat looks at."""
    try:
        with open(place / "events.jsonl", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            size = size if end is None else min(size, end)
            start = file.seek(max(0, size - TAIL - frames.MAX_LINE))
            data = file.read(size - start)
    except OSError:
        return []
    found: list[tuple[int, AnyFrame]] = []
    at, lines = start, data.split(b"\n")
    for number, line in enumerate(lines[:-1]):  # what follows the last newline is being written
        if number or not start:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append((at, frames.decode(line)))
        at += len(line) + 1
    return [(at, frame) for at, frame in found if frame.id is not None]


def recent(past: list[AnyFrame], most: int = MESSAGES) -> tuple[list[AnyFrame], bool]:
    """The end of `past` that has so many messages, and whether something was left out."""
    places = [number for number, frame in enumerate(past) if isinstance(frame, frames.Message)]
    if len(places) <= most:
        return past, bool(past) and past[0].id != "1"
    return past[places[-most] :], True
