"""The disk operations of session files, and of users' logs of runs, in the tree: look, list, open, remove.

Rules: everything here blocks and belongs in a thread. A file behind a link counts as missing, so that only
sessions' own files are ever shown, whatever other files were put among them. So does a file that
core/tree/session_places.py does not know. System calls are few, as each one in a thread may have to wait for
the interpreter.
This file must never know inodes or tasks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.tree import places
from cortexfs.core.tree.session_places import (
    INDEX_NAME,
    LOG_NAME,
    LOGGED,
    NEW,
    RUNS_NAME,
    PlaceKind,
    SessionPlace,
    order,
)
from cortexfs.sessions import disk
from cortexfs.state.no_links import held
from cortexfs.state.run_logs import OLDER

NAMES = 8 << 10  # bytes of names that are read together: of thousands of sessions, if they are short
LINES = 64 << 10  # bytes of their lines at which a piece ends, as each open file keeps one
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Roots(NamedTuple):
    """The two folders on disk below which the tree's folders are; both have its layout."""

    sessions: Path
    runs: Path  # users' logs of runs, which another task writes (state/run_logs.py)

    def of(self, place: SessionPlace) -> tuple[Path, ...]:
        """Returns the roots below which this place may be."""
        if place.kind in (PlaceKind.TOOLS, PlaceKind.TOOL, PlaceKind.RUNS, PlaceKind.USAGE):
            return (self.runs,)
        return tuple(self) if place.kind in LOGGED and place.uid is not None else (self.sessions,)


class SessionFacts(msgspec.Struct, omit_defaults=True):
    session: str
    state: str
    updated: float  # seconds since the epoch
    messages: int
    size: int
    machine: str | None = None  # the machine of a team that has the session
    cwd: str = ""


class _Meta(msgspec.Struct):
    state: str = "idle"
    messages: int = 0
    cwd: str = ""
    machine: str | None = None


_metas = msgspec.json.Decoder(_Meta)


class FileFacts(NamedTuple):
    size: int
    mtime: int  # nanoseconds since the epoch


@contextlib.contextmanager
def folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Yields a descriptor of a folder below the root, which is a real path itself."""
    path = os.path.join(root, *parts)
    with held(path, _FOLDER) as descriptor:
        if os.readlink(f"/proc/self/fd/{descriptor}") != path:  # a link on the way
            raise NotADirectoryError(errno.ENOTDIR, "the path contains a symbolic link", path)
        yield descriptor


def look(roots: Roots, place: SessionPlace) -> FileFacts | None:
    """Returns the facts about a place, or None if it is missing, or is not what its name says."""
    if place.kind is PlaceKind.FACTS:
        with _tolerated(), folder(roots.sessions, place.parts[:-1]) as above:
            return FileFacts(0, os.fstat(above).st_mtime_ns)
    for root in roots.of(place):
        with _tolerated(), folder(root, place.parts[:-1]) as above:
            if found := _look(above, place):
                return found
    return None


def _tolerated() -> contextlib.suppress:
    return contextlib.suppress(FileNotFoundError, NotADirectoryError)


def _look(above: int, place: SessionPlace) -> FileFacts | None:
    try:
        found = os.stat(place.name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_IFMT(found.st_mode) != stat.S_IFMT(place.mode):
        return None
    return FileFacts(found.st_size if stat.S_ISREG(found.st_mode) else 0, found.st_mtime_ns)


def listed(roots: Roots, place: SessionPlace) -> list[tuple[SessionPlace, FileFacts]]:
    """Returns the content of a folder, in the order in which it is shown; none if the folder has gone."""
    entries: dict[SessionPlace, FileFacts] = {}
    for root in reversed(roots.of(place)):
        with _tolerated(), folder(root, place.parts) as here:
            children = [child for name in _names(here) if (child := place.child(name)) and child.is_listed]
            found = ((child, _look(here, child)) for child in children if root in roots.of(child))
            entries |= {child: each for child, each in found if each}
    return sorted(entries.items(), key=lambda item: order(item[0]))


def below(roots: Roots, place: SessionPlace) -> list[SessionPlace]:
    found = []
    for child, _ in listed(roots, place):
        found += [child, *(below(roots, child) if child.is_folder else ())]
    return found


def _names(folder: int) -> list[str]:
    with held(".", os.O_RDONLY | os.O_DIRECTORY, folder) as descriptor:
        return os.listdir(descriptor)


def open_file(roots: Roots, place: SessionPlace) -> int:
    """Returns a descriptor for reading. No FIFO or device is opened: that could wait, or do something."""
    with folder(roots.of(place)[0], place.parts[:-1]) as above:
        if _look(above, place) is None:
            raise _missing(place)
        descriptor = os.open(place.name, _FILE, dir_fd=above)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was exchanged meanwhile
        os.close(descriptor)
        raise _missing(place)
    return descriptor


def read(roots: Roots, place: SessionPlace, offset: int, size: int) -> bytes:
    """Returns bytes of the file that has the name now, or none if there is no file."""
    with _tolerated():
        descriptor = open_file(roots, place)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
    return b""


def open_list(roots: Roots, place: SessionPlace) -> int:
    """Returns a descriptor of the list of names that FACTS follows."""
    with folder(roots.sessions, (*place.parts[:-1], INDEX_NAME)) as index:
        return os.open("list", _FILE, dir_fd=index)


def facts(roots: Roots, place: SessionPlace, names: int, start: int) -> tuple[bytes, int]:
    """Returns lines of FACTS for a piece of the list of names from `start` on, and the next piece's start."""
    lines: list[bytes] = []
    size = 0
    with folder(roots.sessions, place.parts[:-1]) as sessions:
        for raw in os.pread(names, NAMES, start).split(b"\n")[:-1]:
            if size >= LINES:
                break
            start += len(raw) + 1
            name = raw.decode(errors="replace")
            with contextlib.suppress(OSError), held(name, _FOLDER, sessions) as here:
                found = os.stat(LOG_NAME, dir_fd=here, follow_symlinks=False)
                meta = _meta(here)
                counts = found.st_mtime, meta.messages, found.st_size
                line = SessionFacts(name, meta.state, *counts, meta.machine, meta.cwd)
                lines.append(msgspec.json.encode(line))
                size += len(lines[-1])
    return b"\n".join([*lines, b""]) if lines else b"", start


def _meta(session: int) -> _Meta:
    with contextlib.suppress(OSError, msgspec.MsgspecError), held("meta.json", _FILE, session) as descriptor:
        return _metas.decode(os.pread(descriptor, NAMES, 0))
    return _Meta()


def _missing(place: SessionPlace) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it does not exist", place.name)


def remove(roots: Roots, place: SessionPlace) -> None:
    """Remove a file, or a folder that shows nothing but perhaps a log of runs."""
    if not place.is_folder:
        with folder(roots.of(place)[0], place.parts[:-1]) as above:
            if place.kind is PlaceKind.RUNS:  # the older half first: it is not shown, so it must not be left
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place.name + OLDER, dir_fd=above)
            os.unlink(place.name, dir_fd=above)
        return
    for root in roots.of(place):
        with _tolerated(), folder(root, place.parts[:-1]) as above:
            if all(child.kind is PlaceKind.RUNS for child, _ in listed(roots, place)):
                with folder(root, place.parts) as here:
                    _clear(here)
            os.rmdir(place.name, dir_fd=above)


def _clear(folder: int) -> None:
    """Remove half-made and half-removed files that a crash left, which are not shown. Remove a log of runs,
    too: it began anew during `rm -r`, when a run ended in a session that `rm -r` removed."""
    for name in _names(folder):
        if name.startswith(NEW) or name in (RUNS_NAME, RUNS_NAME + OLDER):
            os.unlink(name, dir_fd=folder)
        elif name.startswith(disk.REMOVED):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def homes(roots: Roots, names: Iterable[str] | None = None) -> list[int]:
    """Returns the users who have a home, or those of them whose homes have these names."""
    found: set[int] = set()
    for root in roots:
        with _tolerated(), folder(root, ("home",)) as here:
            for name in _names(here) if names is None else names:
                with contextlib.suppress(Fault, FileNotFoundError):
                    uid = places.uid_of(name)
                    if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                        found.add(uid)
    return sorted(found)
