"""The messages of a session and its newest events, read from its files in the mount.

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

TAIL = 1 << 20  # bytes at the end of a log in which a chat looks for the newest messages
MESSAGES = 20


def messages(place: Path) -> Iterator[frames.Message]:
    """Yields the messages, oldest first. A line of the file is a frame without its type."""
    with open(place / "messages.jsonl", "rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                fields = msgspec.json.decode(line, type=dict[str, Any])
                yield msgspec.convert(fields | {"type": "message"}, frames.Message)


def tail(place: Path) -> list[AnyFrame]:
    """Returns the newest events, as many as a chat reads."""
    return [frame for _, frame in window(place)]


def window(place: Path, end: int | None = None) -> list[tuple[int, AnyFrame]]:
    """Returns the last events of the log, or the last before byte `end`, each with the byte at which it
    begins. Reads as much of the log as a chat needs."""
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
    for number, line in enumerate(lines[:-1]):  # the text after the last newline is still being written
        if number or not start:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append((at, frames.decode(line)))
        at += len(line) + 1
    return [(at, frame) for at, frame in found if frame.id is not None]


def recent(past: list[AnyFrame], most: int = MESSAGES) -> tuple[list[AnyFrame], bool]:
    """Returns the last `most` messages of `past` with all after them, and True if something was left out."""
    places = [number for number, frame in enumerate(past) if isinstance(frame, frames.Message)]
    if len(places) <= most:
        return past, bool(past) and past[0].id != "1"
    return past[places[-most] :], True
