"""The log of a session on disk: how its readers read, what it may take, and what a worker thread has to know.

Rules: an error of the disk is a Fault from here on. What readers need is read from the page cache on the trio
thread, which cannot block, and from the disk in a thread.
This file must never know in what order things are written.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from cortexfs.core.errors import Fault, code_of
from cortexfs.sessions import checkpoint
from cortexfs.sessions.disk import Descriptors
from cortexfs.sessions.layout import EVENTS, Address, DerivedFacts
from cortexfs.sessions.log import Log, Share, WriteLoad
from cortexfs.sessions.log_facts import Scan, Scanned

READERS = 8  # threads that may wait for the disk on behalf of readers
ADVICE = {
    "ENOSPC": "make room, then send again",
    "EDQUOT": "make room, then send again",
    "EROFS": "make the state directory writable, then send again",
}


def fault_of(error: OSError, doing: str) -> Fault:
    code = code_of(error.errno)
    what = f"the session cannot be {doing} ({error.strerror or error})"
    return Fault(code, f"{what}: {ADVICE.get(code, 'see to the disk of the state directory')}")


class LogContent(msgspec.Struct):
    scan: Scan
    given: int  # the last id that may have been seen
    derived: int = 0  # how much of the log is in the files beside it
    kept: tuple[int, bytes] = (0, b"")  # how much of it is in a checkpoint, and what its user made of that
    made: bool = False
    torn: bool = False  # a crash left something behind its end that could not be cut off
    remarks: list[str] = msgspec.field(default_factory=list)  # what a person should hear of it


class LogDisk:
    def __init__(self, root: Path, descriptors: int, touched: Callable[[Log], None]) -> None:
        self.root = root
        self.touched = touched
        self.descriptors = Descriptors(descriptors)
        self.load = WriteLoad()
        self.reading = trio.CapacityLimiter(READERS)


class FileLog(Log):
    """A log on disk. Its attributes are what has to be remembered to write it."""

    def __init__(self, disk: LogDisk, address: Address, loaded: LogContent, share: Share) -> None:
        self.address = address
        self.folder = disk.root.joinpath(*address.parts)
        self.path = self.folder / EVENTS
        self.made = loaded.made
        self.torn = loaded.torn
        self.ragged = False  # a write failed and may have left a piece of itself
        self.derived = loaded.derived
        self.kept = loaded.kept
        self.doubtful = False  # an fsync failed: what it should have written has to be written once more
        self.fresh: list[Path] = []  # folders with new entries that are not on disk
        self.syncing = False
        self.mirror: Callable[[], None] | None = None  # is told that more is on disk, for a second place
        self.here = loaded.scan.size  # as much of it is on disk
        self._kept_here: deque[tuple[int, int]] = deque()  # up to which size and event, and not there
        self._disk = disk
        super().__init__(loaded.scan, loaded.given, disk.touched, disk.load, share, not loaded.made)

    async def fetch(self, offset: int, size: int) -> bytes:
        """From the page cache at once, from the disk in a thread."""
        if data := self._at_hand(offset, size):
            return data
        try:
            return await trio.to_thread.run_sync(self.read, offset, size, limiter=self._disk.reading)
        except OSError as error:
            raise fault_of(error, "read") from None

    def _at_hand(self, offset: int, size: int) -> bytes:
        """As much of it as needs no waiting, perhaps nothing."""
        if not (opened := self._disk.descriptors.held(self.path)):
            return b""
        try:
            buffer = bytearray(size)
            count = os.preadv(opened.descriptor, [buffer], offset, os.RWF_NOWAIT)
            return bytes(memoryview(buffer)[:count])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):  # not in the cache; a file system without
                return b""
            raise fault_of(error, "read") from None
        finally:
            self._disk.descriptors.release(opened)

    @property
    def is_worth_keeping(self) -> bool:
        """Returns True if much of it would have to be read anew, and all of it is on disk."""
        rests = not self.pending and self.synced == self.size and not self.ended and not self.fault
        return rests and self.size - self.kept[0] >= checkpoint.STEP

    async def keep(self, state: bytes) -> None:
        """Keep a checkpoint, with what its user has made of all of it."""
        scanned = Scanned.of(self.size, self.facts, self.index)
        self.kept = self.size, state
        with suppress(OSError):  # then it is read anew
            await trio.to_thread.run_sync(self._keep, scanned, state, limiter=self._disk.reading)

    def _keep(self, scanned: Scanned, state: bytes) -> None:
        with self._disk.descriptors.using(self.path) as descriptor:
            checkpoint.write(self.folder, descriptor, scanned, state)

    def become_copy(self) -> None:
        """Another machine has the session, and gives its events their ids."""
        self.mirror, self.is_copy = None, True
        if not self.pending:
            self.given = self.last

    # Of a log that a second place has to have as well before it counts as on disk.

    def only_here(self, size: int, id: int, mirror: Callable[[], None]) -> None:
        """All up to `size` and to the event `id` is on disk, and the second place is told so."""
        self._kept_here.append((size, id))
        mirror()

    def stored(self, size: int) -> None:
        """The second place has it up to there."""
        while self._kept_here and self._kept_here[0][0] <= size:
            self.on_disk(*self._kept_here.popleft())

    def read(self, offset: int, size: int) -> bytes:
        with self._disk.descriptors.using(self.path) as descriptor:
            return os.pread(descriptor, size, offset)

    @property
    def told(self) -> DerivedFacts:
        """Returns the part of it that may be said: a `done` that is not on disk is not."""
        return DerivedFacts.of(self.facts, self.visible, "active" if self.holds_done else self.facts.state)
