"""The disk operations of session logs: open, write, sync, repair, replace, discard.

Rules: everything here blocks and belongs in a worker thread. Several threads may be here at once, each with
other logs. Links are not followed. A write that fails leaves the file as long as it was; a file that is
replaced is replaced as a whole. Errors are OSErrors, for the caller to translate.
This file must never know frames or tasks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from cortexfs.core.tree.session_places import NEW
from cortexfs.sessions.log_facts import Scan, Scanned
from cortexfs.state import no_links, whole_files

PIECE = 1 << 20
REMOVED = ".removed."


class Descriptors:
    """Open files, up to a limit: above it, unused files are closed, the longest unused first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _Open] = OrderedDict()

    def held(self, path: Path) -> _Open | None:
        """Returns the open file, in use until `release`, or None if it is not open. Does not block."""
        with self._lock:
            if found := self._open.get(path):
                self._open.move_to_end(path)
                found.users += 1
            return found

    def take(self, path: Path, write: bool = False) -> _Open:
        """Returns the file, opened if need be, in use until `release`."""
        if found := self.held(path):
            if found.writable or not write:
                return found
            self.release(found)
            self.forget(path)
        descriptor, writable = _open(path, write)
        with self._lock:
            if path in self._open:  # another thread was faster
                os.close(descriptor)
                found = self._open[path]
            else:
                found = self._open[path] = _Open(descriptor, writable)
            found.users += 1
        self._shrink()
        return found

    def release(self, opened: _Open) -> None:
        with self._lock:
            opened.users -= 1
            if opened.forgotten and not opened.users:
                os.close(opened.descriptor)

    @contextlib.contextmanager
    def using(self, path: Path, write: bool = False) -> Iterator[int]:
        """Yields the descriptor of the file, opened if need be."""
        opened = self.take(path, write)
        try:
            yield opened.descriptor
        finally:
            self.release(opened)

    def forget(self, path: Path) -> None:
        """Close the file, now or when its last user releases it."""
        with self._lock:
            if found := self._open.pop(path, None):
                found.forgotten = True
                if not found.users:
                    os.close(found.descriptor)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    def _shrink(self) -> None:
        with self._lock:
            surplus = len(self._open) - self._limit
            idle = (path for path, opened in self._open.items() if not opened.users)
            for path in list(islice(idle, max(surplus, 0))):
                os.close(self._open.pop(path).descriptor)


class _Open:
    __slots__ = ("descriptor", "forgotten", "users", "writable")

    def __init__(self, descriptor: int, writable: bool) -> None:
        self.descriptor = descriptor
        self.writable = writable
        self.users = 0
        self.forgotten = False


def _open(path: Path, write: bool) -> tuple[int, bool]:
    """One descriptor serves readers and the writer; on a disk that is read-only, readers only."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), True
    except OSError as error:
        if write or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), False


def given_away(root: Path) -> list[Path]:
    """Returns the folders that earlier versions of root's daemon gave to users. They are closed to root
    without powers, and not taken over here: an intruder in that daemon could have moved any folder here."""
    if os.geteuid() or root.is_symlink() or not root.is_dir():
        return []
    folders = [kind for kind in root.iterdir() if not kind.is_symlink() and kind.is_dir()]
    return [path for folder in folders for path in folder.iterdir() if path.lstat().st_uid]


def make_folder(root: Path, parts: tuple[str, ...]) -> list[Path]:
    """Make root/parts, each 0700. Returns the folders that have a new entry."""
    grown: list[Path] = []
    folder = root
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for part in parts:
        parent, folder = folder, folder / part
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            grown.append(parent)
    return grown


def create(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def shorten(descriptor: int, size: int) -> None:
    """Cut off the bytes behind `size`, if there are any."""
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, size)


def cut(path: Path, descriptor: int, end: int) -> str:
    """Cut off the bytes behind `end`, once a file beside this one has them. Returns that file's name."""
    copy = path.with_name(f"{path.name}.cut-{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
    places = range(end, os.fstat(descriptor).st_size, PIECE)
    whole_files.replace(copy, (os.pread(descriptor, PIECE, place) for place in places), 0o600)
    os.ftruncate(descriptor, end)
    return copy.name


def scan(descriptor: int, known: Scanned | None = None, end: int = sys.maxsize) -> Scan:
    """Returns the scan of a log up to `end`. `known` is the scan of its beginning, if there is one."""
    found = Scan(known)
    while piece := os.pread(descriptor, min(PIECE, end - found.read), found.read):
        found.feed(piece)
    return found


def rewrite(descriptor: int, start: int, end: int) -> None:
    """Write these bytes once more, so that the next fsync has something to write.

    fsync(2): after a failure the pages count as clean though they never reached the disk, and a second fsync
    succeeds without having written them.
    """
    for offset in range(start, end, PIECE):
        whole_files.write_at(descriptor, os.pread(descriptor, min(PIECE, end - offset), offset), offset)


def sync_path(path: Path, sync: Callable[[int], None] = os.fsync) -> None:
    with no_links.held(path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
        sync(descriptor)


def replace(path: Path, pieces: Iterable[bytes]) -> None:
    """Put a file in the place of another, as a whole. It does not wait for the disk."""
    whole_files.replace(path, pieces, 0o600, name=NEW + path.name, durable=False)


def bury(folder: Path) -> Path:
    """Free the name of a folder that is to be removed, for good once the folder above is synced. Returns the
    folder's new path."""
    grave = folder.with_name(f"{REMOVED}{time.monotonic_ns()}.{folder.name}")
    folder.rename(grave)
    return grave


def clear_graves(parent: Path) -> None:
    """Remove the folders that were buried when a crash kept them from being removed."""
    for grave in parent.glob(REMOVED + "*"):
        shutil.rmtree(grave, ignore_errors=True)
