"""Sessions as their files in the mount tell of them: which there are, what was said, what may go.

Rules: only what every program could read too is read, and a session is removed as `rm -r` would do it.
A file that is missing or damaged makes an answer poorer, never an error: a session may go at any moment.
What a path on the mount does may block, so whoever calls has made sure that the mount answers.
This file must never know commands, terminals or sockets.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cortexfs.core import frames, names
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import INDEX

SPACES = ("private", "shared")
KEPT = "default"  # whoever gives no name means this one; it is not cleared away
FACTS = ".facts"  # in a folder of sessions: a line for each, which the daemon writes as it is read
TAIL = 1 << 20  # bytes of a log in which a chat looks for what was said last
MESSAGES = 20


class StoredSession(NamedTuple):
    """A session in a list."""

    object: str  # model/debug/echo
    session: str
    space: str
    state: str
    updated: float
    messages: int
    size: int
    path: Path
    machine: str | None = None  # of a team, whose session it is


def home(root: str, space: str) -> Path:
    """Where the sessions of a space are: ours, or everybody's."""
    return Path(root) / ("shared/main" if space == "shared" else f"home/{os.getuid()}")


def folder(root: str, object_: str, space: str) -> Path:
    """Where the sessions of an object are."""
    return home(root, space) / f"{object_}.d" / "session"


def objects(root: str, space: str) -> list[str]:
    """The objects that have sessions in a space."""
    base, found = home(root, space), []
    for class_, depth in (("model", "*/*.d"), ("agent", "*.d")):
        for path in sorted((base / class_).glob(f"{depth}/session")):
            found.append(str(path.parent.relative_to(base)).removesuffix(".d"))
    return found


class _Facts(msgspec.Struct):
    """A line of FACTS."""

    session: str
    state: str
    updated: float
    messages: int
    size: int
    machine: str | None = None


_facts = msgspec.json.Decoder(_Facts)


def listing(root: str, object_: str, space: str) -> list[StoredSession]:
    """An object's sessions, newest first."""
    return list(each(root, object_, space))


def each(root: str, object_: str, space: str) -> Iterator[StoredSession]:
    """An object's sessions, newest first, as they come: there may be very many."""
    inside = folder(root, object_, space)
    if not (inside / FACTS).exists():  # of a daemon of an earlier version
        yield from _walked(inside, object_, space)
        return
    with contextlib.suppress(OSError), open(inside / FACTS, "rb") as file:
        for line in file:
            one = _facts.decode(line)
            told = one.state, one.updated, one.messages, one.size
            yield StoredSession(object_, one.session, space, *told, inside / one.session, one.machine)


def _walked(inside: Path, object_: str, space: str) -> list[StoredSession]:
    try:
        there = [name for name in os.listdir(inside) if name != INDEX and not names.fault_of(name)]
    except OSError:
        return []
    found = [one for name in there if (one := _stored(inside / name, object_, space))]
    return sorted(found, key=lambda one: (-one.updated, one.session))


def place(root: str, object_: str, space: str, session: str) -> Path:
    """Where a session is, or would be."""
    requests.check_session(session)
    return folder(root, object_, space) / session


def find(root: str, object_: str, space: str, session: str) -> StoredSession:
    if one := _stored(place(root, object_, space, session), object_, space):
        return one
    raise Fault("ENOENT", f"{object_} has no {space} session {session!r}; see: ctx session list {object_}")


def _stored(place: Path, object_: str, space: str) -> StoredSession | None:
    try:
        stat = os.stat(place / "events.jsonl")
    except OSError:
        return None
    said = meta(place)
    messages = said.get("messages")
    return StoredSession(
        object_,
        place.name,
        space,
        str(text(place / "state") or said.get("state") or "idle"),
        stat.st_mtime,
        messages if isinstance(messages, int) else 0,
        stat.st_size,
        place,
        said.get("machine"),
    )


def meta(place: Path) -> dict[str, Any]:
    """Returns the fields of meta.json, as far as it can be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((place / "meta.json").read_bytes(), type=dict[str, Any])
    return {}


def text(path: Path) -> str:
    """Returns the text of a small file; nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


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


def expired(there: list[StoredSession], age: float | None, keep: int | None) -> list[StoredSession]:
    """Returns those of one object's sessions, newest first, that may go: those unused for `age` seconds,
    and those that are not among the `keep` newest; never the newest, one that runs, or `default`."""
    now = time.time()
    return [
        one
        for rank, one in enumerate(there)
        if rank
        and one.state != "active"
        and one.session != KEPT
        and ((age is not None and now - one.updated > age) or (keep is not None and rank >= keep))
    ]


def remove(one: StoredSession) -> None:
    import shutil  # only a removal pays for it

    try:
        shutil.rmtree(one.path)
    except PermissionError:
        if one.space != "shared":
            raise
        raise Fault("EACCES", "of shared sessions only the daemon's owner removes any") from None
