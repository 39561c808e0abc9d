"""What the files of sessions in the tree do to the disk: look, list, open, remove.

Rules: everything here blocks and belongs in a thread. What is behind a link is not there, so that nothing but
sessions' own files is ever shown, whatever somebody has put among them; nor is what core/spaces.py does not
know. Few system calls, as each one in a thread may have to wait for the interpreter.
This file must never know inodes or tasks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cortexfs import sessiondisk
from cortexfs.core import places
from cortexfs.core.errors import Fault
from cortexfs.core.spaces import Place, order

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Found(NamedTuple):
    size: int
    mtime: int  # nanoseconds since the epoch


@contextlib.contextmanager
def folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """A descriptor of a folder below the root, which is a real path itself."""
    path = os.path.join(root, *parts)
    descriptor = os.open(path, _FOLDER)
    try:
        if os.readlink(f"/proc/self/fd/{descriptor}") != path:  # a link on the way
            raise NotADirectoryError(errno.ENOTDIR, "there is a link on the way", path)
        yield descriptor
    finally:
        os.close(descriptor)


def look(root: Path, place: Place) -> Found | None:
    """None when there is no such thing, or it is not what its name says."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), folder(root, place.parts[:-1]) as above:
        return _look(above, place)
    return None


def _look(above: int, place: Place) -> Found | None:
    try:
        found = os.stat(place.name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_IFMT(found.st_mode) != stat.S_IFMT(place.mode):
        return None
    return Found(found.st_size if stat.S_ISREG(found.st_mode) else 0, found.st_mtime_ns)


def listed(root: Path, place: Place) -> list[tuple[Place, Found]]:
    """What is in a folder, in the order in which it is shown; nothing when it has gone."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), folder(root, place.parts) as here:
        children = [child for name in _names(here) if (child := place.child(name))]
        children.sort(key=order)
        return [(child, found) for child in children if (found := _look(here, child))]
    return []


def below(root: Path, place: Place) -> list[Place]:
    """All that is in a folder and in the folders of it."""
    found = []
    for child, _ in listed(root, place):
        found += [child, *(below(root, child) if child.is_folder else ())]
    return found


def _names(folder: int) -> list[str]:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def open_file(root: Path, place: Place) -> int:
    """A descriptor for reading. A FIFO or device is not opened: that could wait, or do something."""
    with folder(root, place.parts[:-1]) as above:
        if _look(above, place) is None:
            raise _missing(place)
        descriptor = os.open(place.name, _FILE, dir_fd=above)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was exchanged meanwhile
        os.close(descriptor)
        raise _missing(place)
    return descriptor


def _missing(place: Place) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it is not there", place.name)


def remove(root: Path, place: Place) -> None:
    """Remove a file, or a folder in which there is nothing that is shown."""
    with folder(root, place.parts[:-1]) as above:
        if not place.is_folder:
            os.unlink(place.name, dir_fd=above)
            return
        if not listed(root, place):
            with folder(root, place.parts) as here:
                _clear(here)
        os.rmdir(place.name, dir_fd=above)


def _clear(folder: int) -> None:
    """Remove what a crash left half-made or half-removed; nobody sees it."""
    for name in _names(folder):
        if name.startswith(sessiondisk.NEW):
            os.unlink(name, dir_fd=folder)
        elif name.startswith(sessiondisk.REMOVED):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def homes(root: Path) -> list[int]:
    """The users who have sessions here."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), folder(root, ("home",)) as here:
        for name in _names(here):
            with contextlib.suppress(Fault):
                uid = places.uid_of(name)
                if _is_folder(here, name):
                    found.append(uid)
    return found


def has_home(root: Path, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, Fault):
        places.uid_of(name)
        with folder(root, ("home",)) as here:
            return _is_folder(here, name)
    return False


def _is_folder(above: int, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    return False
