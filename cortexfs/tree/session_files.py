"""Open files of sessions, and the sources of their readers' bytes.

    LOG, GROWING   the file that has the name now, so that a reader goes on when it was made anew; of a
                   session that was removed, the file that had it
    REPLACED       the file that had the name at open, so that paged reads agree
    RUNS, USAGE    whatever has the name at each read, as it is rotated under its readers
    FACTS          what the sessions' own files say, a few hundred sessions at a time

Rules: bytes in the page cache are read at once, others in a thread, so that a slow disk holds up its readers
only. Descriptors are kept for the files that were read last. Beyond that many, a file is opened again for a
read, and a reader of a file that was replaced meanwhile gets ESTALE.
This file must never know inodes, nor what a session is.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import trio

from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.tree.session_places import PlaceKind, SessionPlace
from cortexfs.tree import session_disk
from cortexfs.tree.open_files import OpenFile
from cortexfs.tree.session_disk import Roots

P = ParamSpec("P")
T = TypeVar("T")

HELD = 256  # descriptors
THREADS = 8  # threads that may wait for the disk


class SessionFileState(NamedTuple):
    """The facts about a file's session for a reader."""

    is_there: bool  # and no other file has its name now
    visible: int | None  # the bytes that may be seen; None: all


class SessionDisk:
    """The sessions' disk, used in threads, with its errors as Faults."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.held: OrderedDict[SpaceFile, int] = OrderedDict()
        self._threads = trio.CapacityLimiter(THREADS)

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with os_faults("the sessions' disk"):
            return await trio.to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self._threads)

    async def open(self, place: SessionPlace, state: Callable[[], SessionFileState]) -> OpenFile:
        if place.kind in (PlaceKind.RUNS, PlaceKind.USAGE):
            return RunsFile(self, place, state)
        if place.kind is PlaceKind.FACTS:
            return FactsFile(self, place)
        descriptor = await self.do(session_disk.open_file, self.roots, place)
        opened = SpaceFile(self, place, state, _version(descriptor))
        await self.hold(opened, descriptor)
        return opened

    async def hold(self, opened: SpaceFile, descriptor: int) -> None:
        self.held[opened] = descriptor
        if len(self.held) > HELD:
            _, oldest = self.held.popitem(last=False)
            await self.do(os.close, oldest)


class RunsFile(OpenFile):
    """A log of runs. Its readers are few and read at its end, so no descriptor is kept."""

    def __init__(self, disk: SessionDisk, place: SessionPlace, state: Callable[[], SessionFileState]) -> None:
        self._disk = disk
        self._place = place
        self._state = state

    async def read(self, offset: int, size: int) -> bytes:
        if not self._state().is_there:  # it was removed, and another one may have its name
            return b""
        return await self._disk.do(session_disk.read, self._disk.roots, self._place, offset, size)


class FactsFile(OpenFile):
    """A file of FACTS, made while it is read from beginning to end: it is never in memory as a whole."""

    is_stream = has_descriptor = True

    def __init__(self, disk: SessionDisk, place: SessionPlace) -> None:
        self._disk = disk
        self._place = place
        self._names: int | None = None  # the descriptor of the list of names
        self._next = 0  # in the list of names
        self._lines = b""
        self._at = 0  # the offset at which `_lines` begins
        self._turn = trio.Lock()

    async def read(self, offset: int, size: int) -> bytes:
        async with self._turn:
            if not self._at <= offset <= self._at + len(self._lines):
                raise Fault("ESPIPE", "this file can only be read from its beginning to its end")
            self._lines, self._at = self._lines[offset - self._at :], offset
            if self._names is None:
                self._names = await self._disk.do(session_disk.open_list, self._disk.roots, self._place)
            while len(self._lines) < size:
                place = (self._disk.roots, self._place, self._names, self._next)
                lines, after = await self._disk.do(session_disk.facts, *place)
                if after == self._next:
                    break
                self._lines, self._next = self._lines + lines, after
                if lines:
                    break
            return self._lines[:size]

    async def close(self) -> None:
        async with self._turn:
            if self._names is not None:
                await self._disk.do(os.close, self._names)


class SpaceFile(OpenFile):
    def __init__(
        self, disk: SessionDisk, place: SessionPlace, state: Callable[[], SessionFileState], version: object
    ) -> None:
        self._disk = disk
        self._place = place
        self._state = state
        self._version = version
        self._turn = trio.Lock()  # one thread uses the descriptor at a time, so that none is closed in use
        self._closed = False

    async def read(self, offset: int, size: int) -> bytes:
        state = self._state()
        if state.visible is not None:
            size = min(size, state.visible - offset)
        if size <= 0:
            return b""
        async with self._turn:
            descriptor = self._disk.held.get(self)
            data = _cached(descriptor, offset, size) if descriptor is not None else None
            if data or (data is not None and self._place.kind is PlaceKind.REPLACED):
                return data
            return await self._from_disk(offset, size, state.is_there)

    async def _from_disk(self, offset: int, size: int, by_name: bool) -> bytes:
        descriptor = self._disk.held.pop(self, None)
        try:
            descriptor, data = await self._disk.do(self._read, descriptor, offset, size, by_name)
        finally:
            if self._closed and descriptor is not None:
                await self._disk.do(os.close, descriptor)
            elif descriptor is not None:
                await self._disk.hold(self, descriptor)
        return data

    def _read(
        self, descriptor: int | None, offset: int, size: int, by_name: bool
    ) -> tuple[int | None, bytes]:
        if descriptor is not None:
            data = os.pread(descriptor, size, offset)
            if data or self._place.kind is PlaceKind.REPLACED or os.fstat(descriptor).st_nlink:
                return descriptor, data
        if not by_name:
            return descriptor, b""
        try:
            again = session_disk.open_file(self._disk.roots, self._place)
        except (FileNotFoundError, NotADirectoryError):  # it was removed: that is its end
            return descriptor, b""
        try:
            if self._place.kind is PlaceKind.REPLACED and _version(again) != self._version:
                raise OSError(errno.ESTALE, "it was replaced while it was read; read it again")
            data = os.pread(again, size, offset)
        except OSError:
            os.close(again)
            raise
        if descriptor is not None:
            os.close(descriptor)
        return again, data

    async def close(self) -> None:
        self._closed = True
        if (descriptor := self._disk.held.pop(self, None)) is not None:
            await self._disk.do(os.close, descriptor)


def _version(descriptor: int) -> tuple[int, int, int]:
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _cached(descriptor: int, offset: int, size: int) -> bytes | None:
    """Returns the bytes if the page cache has all of them up to the file's end, else None, for a thread to
    read them. A part of them would look like the file's end to the kernel and the reader."""
    buffer = bytearray(size)
    try:
        count = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
        if count < size and offset + count < os.fstat(descriptor).st_size:
            return None
    except OSError:
        return None
    return bytes(memoryview(buffer)[:count])
