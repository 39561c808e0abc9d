"""The log of a session on disk: its reading, its checkpoint, and the facts that a worker thread needs.

Rules: errors of the disk become Faults here. Readers get bytes from the page cache on the trio thread, which
cannot block, and from the disk in a thread.
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
    message = f"the session cannot be {doing} ({error.strerror or error})"
    return Fault(code, f"{message}: {ADVICE.get(code, 'check the disk of the state directory')}")


class LogContent(msgspec.Struct):
    scan: Scan
    newest: int  # the last id that may have been seen
    derived: int = 0  # bytes of the log that are in the files beside it
    checkpoint: tuple[int, bytes] = (0, b"")  # bytes of it in a checkpoint, and its user's state there
    is_made: bool = False
    torn: bool = False  # a crash left bytes behind its end that could not be cut off
    remarks: list[str] = msgspec.field(default_factory=list)  # sentences about it for a person


class LogDisk:
    def __init__(self, root: Path, descriptors: int, touched: Callable[[Log], None]) -> None:
        self.root = root
        self.touched = touched
        self.descriptors = Descriptors(descriptors)
        self.load = WriteLoad()
        self.reading = trio.CapacityLimiter(READERS)


class FileLog(Log):
    """A log on disk. Its attributes are the facts that writing it needs."""

    def __init__(self, disk: LogDisk, address: Address, loaded: LogContent, share: Share) -> None:
        self.address = address
        self.folder = disk.root.joinpath(*address.parts)
        self.path = self.folder / EVENTS
        self.is_made = loaded.is_made
        self.torn = loaded.torn
        self.ragged = False  # a write failed and may have left a part of its data
        self.derived = loaded.derived
        self.checkpoint = loaded.checkpoint
        self.doubtful = False  # an fsync failed: its data has to be written once more
        self.fresh: list[Path] = []  # folders with new entries that are not on disk
        self.syncing = False
        self.mirror: Callable[[], None] | None = None  # called when more is on disk, for a second place
        self.here = loaded.scan.size  # bytes of it that are on disk here
        self._kept_here: deque[tuple[int, int]] = deque()  # sizes and events that the second place lacks
        self._disk = disk
        super().__init__(loaded.scan, loaded.newest, disk.touched, disk.load, share, not loaded.is_made)

    async def fetch(self, offset: int, size: int) -> bytes:
        """Returns bytes from the page cache at once, else from the disk in a thread."""
        if data := self._at_hand(offset, size):
            return data
        try:
            return await trio.to_thread.run_sync(self.read, offset, size, limiter=self._disk.reading)
        except OSError as error:
            raise fault_of(error, "read") from None

    def _at_hand(self, offset: int, size: int) -> bytes:
        """Returns the bytes that can be had without waiting, perhaps none."""
        if not (opened := self._disk.descriptors.held(self.path)):
            return b""
        try:
            buffer = bytearray(size)
            count = os.preadv(opened.descriptor, [buffer], offset, os.RWF_NOWAIT)
            return bytes(memoryview(buffer)[:count])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):  # not cached, or not possible here
                return b""
            raise fault_of(error, "read") from None
        finally:
            self._disk.descriptors.release(opened)

    @property
    def is_worth_keeping(self) -> bool:
        """Returns True if much of the log is in no checkpoint, and all of it is on disk."""
        rests = not self.pending and self.synced == self.size and not self.ended and not self.fault
        return rests and self.size - self.checkpoint[0] >= checkpoint.STEP

    async def keep(self, state: bytes) -> None:
        """Keep a checkpoint of the whole log, with the state of its user."""
        scanned = Scanned.of(self.size, self.facts, self.index)
        self.checkpoint = self.size, state
        with suppress(OSError):  # then the log is read anew
            await trio.to_thread.run_sync(self._keep, scanned, state, limiter=self._disk.reading)

    def _keep(self, scanned: Scanned, state: bytes) -> None:
        with self._disk.descriptors.using(self.path) as descriptor:
            checkpoint.write(self.folder, descriptor, scanned, state)

    def become_copy(self) -> None:
        """Make this the copy of a session that another machine has, which gives its events their ids."""
        self.mirror, self.is_copy = None, True
        if not self.pending:
            self.newest = self.last

    # A log that counts as on disk only when a second place has it as well.

    def only_here(self, size: int, id: int, mirror: Callable[[], None]) -> None:
        """Note that all up to `size` and the event `id` is on disk here, and call the second place."""
        self._kept_here.append((size, id))
        mirror()

    def stored(self, size: int) -> None:
        """Note that the second place has the log up to `size`."""
        while self._kept_here and self._kept_here[0][0] <= size:
            self.on_disk(*self._kept_here.popleft())

    def read(self, offset: int, size: int) -> bytes:
        with self._disk.descriptors.using(self.path) as descriptor:
            return os.pread(descriptor, size, offset)

    @property
    def visible_facts(self) -> DerivedFacts:
        """Returns the facts that may be shown: a `done` that is not on disk is left out."""
        return DerivedFacts.of(self.facts, self.visible, "active" if self.holds_done else self.facts.state)
