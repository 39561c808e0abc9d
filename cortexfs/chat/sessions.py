"""The sessions of objects, read from their files in the mount: list, find, rename and remove them.

Rules: only files that every program could read too are read, and a session is removed as `rm -r` would do it.
A file that is missing or damaged makes an answer poorer, never an error: a session may go at any moment. A
path on the mount may block, so the caller makes sure first that the mount answers. The json module reads the
lines, because importing msgspec takes longer than reading a thousand of them.
Messages and events are the part of said.py. This file must never know commands, terminals or sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cortexfs.core import names
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.names import INDEX

SPACES = ("private", "shared")
LEAVE_SECONDS = 1.0  # a session that was just left may be in use for that long
KEPT = "default"  # the session that is meant if no name is given; it is not cleared away
_REFUSED = {  # by the kernel's error code
    "EBUSY": "the session is in use; leave it everywhere, and try again",
    "EEXIST": "there is a session {name} already; choose another name",
    "ENOTEMPTY": "there is a session {name} already; choose another name",
    "EACCES": "only the daemon's owner may rename shared sessions",
}
FACTS = ".facts"  # a file in a folder of sessions, with one line for each; the daemon writes it on each read


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
    machine: str | None = None  # the machine of a team whose session it is
    cwd: str = ""


def home(root: str, space: str) -> Path:
    """Returns the folder of the sessions of a space: the user's, or the shared one."""
    return Path(root) / ("shared/main" if space == "shared" else f"home/{os.getuid()}")


def folder(root: str, object_: str, space: str) -> Path:
    """Returns the folder of an object's sessions."""
    return home(root, space) / f"{object_}.d" / "session"


def kept_by(path: str, name: str) -> str:
    """Returns a sentence about the other machine that keeps an agent's sessions; empty if none does."""
    origin = text(Path(f"{os.path.realpath(path)}.d/origin")) if name.startswith("agent/") else ""
    if not origin.startswith("machine:"):
        return ""
    machine = origin.removeprefix("machine:")
    return f"the sessions of {name} are kept on {'its machine' if machine == 'any' else machine}"


def objects(root: str, space: str) -> list[str]:
    """Returns the objects that have sessions in a space."""
    base, found = home(root, space), []
    for class_, depth in (("model", "*/*.d"), ("agent", "*.d")):
        for path in sorted((base / class_).glob(f"{depth}/session")):
            found.append(str(path.parent.relative_to(base)).removesuffix(".d"))
    return found


def each(root: str, object_: str, space: str) -> Iterator[StoredSession]:
    """Yields an object's sessions, newest first, one by one, as there may be very many."""
    inside = folder(root, object_, space)
    with contextlib.suppress(OSError), open(inside / FACTS, "rb") as file:
        for line in file:
            record = json.loads(line)
            facts = record["state"], record["updated"], record["messages"], record["size"]
            more = record.get("machine"), record.get("cwd", "")
            yield StoredSession(object_, record["session"], space, *facts, inside / record["session"], *more)


def place(root: str, object_: str, space: str, session: str) -> Path:
    """Returns the path of a session, which need not exist."""
    names.check_session(session)
    return folder(root, object_, space) / session


def find(root: str, object_: str, space: str, session: str) -> StoredSession:
    names.check_session(session)
    for found in each(root, object_, space):
        if found.session == session:
            return found
    raise Fault("ENOENT", f"{object_} has no {space} session {session!r}; see: ctx session list {object_}")


def meta(place: Path) -> dict[str, Any]:
    """Returns the fields of meta.json; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if isinstance(facts := json.loads((place / "meta.json").read_bytes()), dict):
            return facts
    return {}


def text(path: Path) -> str:
    """Returns the text of a small file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def expired(sessions: list[StoredSession], age: float | None, keep: int | None) -> list[StoredSession]:
    """Returns the sessions of one object that may go, from a list with the newest first. A session may go if
    unused for `age` seconds, or not among the `keep` newest. The newest, a running one and `default` stay."""
    now = time.time()
    return [
        session
        for rank, session in enumerate(sessions)
        if rank
        and session.state != "active"
        and session.session != KEPT
        and ((age is not None and now - session.updated > age) or (keep is not None and rank >= keep))
    ]


def rename(session: StoredSession, name: str) -> None:
    if names.check(name) == INDEX:
        raise Fault("EINVAL", "no session can be named index; choose another name")
    if "+" in session.session + name:
        raise Fault("EPERM", "a session with + in its name is of a team, and cannot be renamed")
    until = time.monotonic() + LEAVE_SECONDS
    while True:
        try:
            session.path.rename(session.path.with_name(name))
            return
        except OSError as problem:
            code = code_of(problem.errno)
            if code == "EBUSY" and time.monotonic() < until:
                time.sleep(LEAVE_SECONDS / 20)
            elif code in _REFUSED:
                raise Fault(code, _REFUSED[code].format(name=name)) from None
            else:
                raise


def remove(session: StoredSession) -> None:
    """Remove a session. Without its log it has ended, and one rmdir(2) takes the rest of it."""
    import shutil  # a slow import that only removing needs

    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(session.path / "events.jsonl")
        with contextlib.suppress(OSError):
            os.rmdir(session.path)
            return
        shutil.rmtree(session.path)  # the rest is no session
    except PermissionError:
        if session.space != "shared":
            raise
        raise Fault("EACCES", "only the daemon's owner may remove shared sessions") from None
