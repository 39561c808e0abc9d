"""The open files of the tree, one class for each kind; fuse.py has the handles.

    Snapshot        the bytes as they were at open, so that paged reads agree
    LogFile         an object's log, which grows under its readers
    TemporaryFile   an editor's file; all opens share its bytes
    ControlFile     a writable control; each open has its own buffer (core/tree/edits.py), and a draft on disk
    SpaceFile       a file of a session (session_files.py)

Rules: only reading a file of a session and writing a control may wait. A file that changes with its object
only needs no handle: its inode serves. So a call, which begins with opening an executable, leaves nothing
behind here, and no user can make the daemon hold many copies of a large schema.
This file must never know what the kernel keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key
from cortexfs.core.tree.controls import Control
from cortexfs.core.tree.edits import Edit, Temporary
from cortexfs.linux.subordinates import person_of
from cortexfs.state.control_store import Draft
from cortexfs.state.run_logs import Logs

if TYPE_CHECKING:
    from cortexfs.tree.writes import TreeWrites

Listing: TypeAlias = list[tuple[str, int]]

MAX_ENTRIES = 1_000_000  # entries of one user's open folders; a hundred bytes each
MAX_OF_HOME = 128  # open files of a user's own objects (a control has 64 KiB at most), and with a descriptor
FIRST_HANDLE = 1 << 62  # above all inodes


class OpenFile(ABC):
    """An open file. Operations that a kind does not support are refused."""

    is_stream = False  # it has no offsets
    has_descriptor = False  # of its own, from its first read to its close

    @abstractmethod
    async def read(self, offset: int, size: int) -> bytes: ...

    async def write(self, offset: int, data: bytes) -> int:
        raise Fault("EBADF", "this file is not open for writing")

    def truncate(self, size: int) -> None:
        raise Fault("EBADF", "this file is not open for writing")

    async def close(self) -> None:  # noqa: B027  # most kinds have nothing to let go of
        """Called after the last close."""


class Snapshot(OpenFile):
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


class LogFile(OpenFile):
    def __init__(self, logs: Logs, key: Key) -> None:
        self._logs = logs
        self._key = key

    async def read(self, offset: int, size: int) -> bytes:
        return self._logs.read(*self._key, offset, size)


class TemporaryFile(OpenFile):
    def __init__(self, temporary: Temporary, clock: Callable[[], int], *, appending: bool) -> None:
        self._temporary = temporary
        self._clock = clock
        self._appending = appending

    async def read(self, offset: int, size: int) -> bytes:
        return self._temporary.read(offset, size)

    async def write(self, offset: int, data: bytes) -> int:
        start = len(self._temporary.data) if self._appending else offset
        return self._temporary.write(start, data, self._clock())

    def truncate(self, size: int) -> None:
        self._temporary.truncate(size, self._clock())


class ControlFile(OpenFile):
    def __init__(self, key: Key, control: Control, incarnation: int, edit: Edit, drafts: TreeWrites) -> None:
        self.key = key
        self.control = control
        self.incarnation = incarnation
        self.edit = edit
        self.draft: Draft | None = None
        self.mtime: int | None = None  # the time that was set after the last write (cp -p)
        self._drafts = drafts

    async def read(self, offset: int, size: int) -> bytes:
        return self.edit.read(offset, size)

    async def write(self, offset: int, data: bytes) -> int:
        self.mtime = None
        written = self.edit.write(offset, data)
        try:
            await self._drafts.keep_draft(self)
        except Fault as fault:
            self.edit.spoil(fault)
            raise
        return written

    def truncate(self, size: int) -> None:
        self.mtime = None
        self.edit.truncate(size)

    async def close(self) -> None:
        await self._drafts.drop_draft(self)


class Handles:
    """All open files, and the listings of open folders, by the kernel's handle."""

    def __init__(self) -> None:
        self._files: dict[int, OpenFile] = {}
        self._homes: dict[int, int] = {}  # of the files that count: their users
        self._in_homes: Counter[int] = Counter()
        self._listings: dict[int, tuple[Listing, int]] = {}
        self._entries: Counter[int] = Counter()  # in open listings, by uid
        self._last = FIRST_HANDLE

    def add(self, opened: OpenFile, home: int | None = None) -> int:
        """Returns a handle. Raises EMFILE if a user has too many own files open, as each may hold bytes, or a
        descriptor."""
        if home is not None:
            home = person_of(home)
            if self._in_homes[home] >= MAX_OF_HOME:
                why = f"uid {home} has {MAX_OF_HOME} files of own objects, or .facts, open; close some"
                raise Fault("EMFILE", why)
        self._last += 1
        self._files[self._last] = opened
        if home is not None:
            self._homes[self._last] = home
            self._in_homes[home] += 1
        return self._last

    def find(self, handle: int | None) -> OpenFile | None:
        """Returns the open file, or None if the handle is an inode."""
        return self._files.get(handle) if handle else None

    def remove(self, handle: int) -> OpenFile | None:
        if (home := self._homes.pop(handle, None)) is not None:
            self._in_homes[home] -= 1
        return self._files.pop(handle, None)

    def add_listing(self, listing: Listing, uid: int) -> int:
        """Open a folder. Raises EMFILE if the user has too many open, as each may be of another moment."""
        uid = person_of(uid)
        if self._entries[uid] + len(listing) > MAX_ENTRIES:
            raise Fault("EMFILE", f"uid {uid} has too many folders open; close some")
        self._entries[uid] += len(listing)
        self._last += 1
        self._listings[self._last] = (listing, uid)
        return self._last

    def listing(self, handle: int) -> Listing:
        return self._listings[handle][0]

    def remove_listing(self, handle: int) -> Listing:
        listing, uid = self._listings.pop(handle, ([], 0))
        self._entries[uid] -= len(listing)
        if not self._entries[uid]:
            del self._entries[uid]
        return listing

    def set_mtime(self, key: Key, control: Control, mtime: int) -> None:
        """Set the time of a written value that is not taken over yet."""
        for opened in self._files.values():
            if isinstance(opened, ControlFile) and (opened.key, opened.control) == (key, control):
                opened.mtime = mtime
