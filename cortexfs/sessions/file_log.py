"""The log of a session on disk: how its readers read, what it may take, and what a worker thread has to know.

Rules: an error of the disk is a Fault from here on. What readers need is read from the page cache on the trio
thread, which cannot block, and from the disk in a thread.
This file must never know in what order things are written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio

from cortexfs.core.errors import Fault, code_of
from cortexfs.sessions.disk import Descriptors
from cortexfs.sessions.layout import EVENTS, Address, DerivedFacts
from cortexfs.sessions.log import Log, WriteLoad
from cortexfs.sessions.log_facts import Scan

MEND = "remove some with ctx session rm or ctx session gc, or have the limit raised in config.toml"
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
    """The content of a log on disk."""

    scan: Scan
    given: int  # the last id that may have been seen
    derived: int = 0  # how much of the log is in the files beside it
    made: bool = False
    ragged: bool = False  # there is something behind its end that could not be cut off
    remarks: list[str] = msgspec.field(default_factory=list)  # what a person should hear of it


class LogDisk:
    """The common part of all logs on disk."""

    def __init__(self, root: Path, descriptors: int, touched: Callable[[Log], None]) -> None:
        self.root = root
        self.touched = touched
        self.descriptors = Descriptors(descriptors)
        self.load = WriteLoad()
        self.reading = trio.CapacityLimiter(READERS)


class Most(msgspec.Struct, frozen=True):
    session_bytes: int = 256 << 20
    space_bytes: int = 4096 << 20
    space_sessions: int = 10_000


class Share:
    """The share of a space's sessions."""

    def __init__(self, most: Most) -> None:
        self.sessions = 0
        self.bytes = 0
        self._most = most

    def admit(self, size: int, is_new: bool) -> None:
        """Before more is said in a session, of `size` bytes now: EFBIG or EDQUOT where that is too much."""
        most = self._most
        if size >= most.session_bytes:
            mib = most.session_bytes >> 20
            raise Fault("EFBIG", f"the session holds {mib} MiB, which is the limit; begin another")
        if self.bytes >= most.space_bytes:
            raise Fault("EDQUOT", f"there are {most.space_bytes >> 20} MiB of sessions already; {MEND}")
        if is_new and self.sessions >= most.space_sessions:
            raise Fault("EDQUOT", f"there are {most.space_sessions} sessions already; {MEND}")


class FileLog(Log):
    """A log on disk, with what has to be remembered to write it."""

    def __init__(self, disk: LogDisk, address: Address, loaded: LogContent, share: Share) -> None:
        self.address = address
        self.folder = disk.root.joinpath(*address.parts)
        self.path = self.folder / EVENTS
        self.made = loaded.made
        self.ragged = loaded.ragged
        self.derived = loaded.derived
        self.doubtful = False  # an fsync failed: what it should have written has to be written once more
        self.fresh: list[Path] = []  # folders with new entries that are not on disk
        self.syncing = False
        self._disk = disk
        self._share = share
        self._is_new = not loaded.made
        super().__init__(loaded.scan, loaded.given, disk.touched, disk.load)

    def check_share(self) -> None:
        self._share.admit(self.size, self._is_new)

    def written(self, lines: Sequence[bytes], size: int) -> bool:
        self._share.bytes += size
        self._share.sessions += self._is_new
        self._is_new = False
        return super().written(lines, size)

    async def fetch(self, offset: int, size: int) -> bytes:
        """From the page cache at once, from the disk in a thread."""
        if data := self.at_hand(offset, size):
            return data
        try:
            return await trio.to_thread.run_sync(self._read, offset, size, limiter=self._disk.reading)
        except OSError as error:
            raise fault_of(error, "read") from None

    def at_hand(self, offset: int, size: int) -> bytes:
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

    def _read(self, offset: int, size: int) -> bytes:
        opened = self._disk.descriptors.take(self.path)
        try:
            return os.pread(opened.descriptor, size, offset)
        finally:
            self._disk.descriptors.release(opened)

    @property
    def told(self) -> DerivedFacts:
        """Returns the part of it that may be said: a `done` that is not on disk is not."""
        return DerivedFacts.of(self.facts, self.visible, "active" if self.holds_done else self.facts.state)
