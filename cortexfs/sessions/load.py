"""The loading of sessions' logs from the disk, and the repair of logs after a crash.

Rules: a few threads load, and each takes a share of the waiting sessions. So a thousand sessions that are
opened at once cost the memory of a few, and wait for a few turns of a busy daemon. A load that has begun is
finished, even if its caller is cancelled, so no log is loaded twice at a time.
This file must never know who opens a session, or what is done with it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions import checkpoint, disk, layout
from cortexfs.sessions.disk import Descriptors
from cortexfs.sessions.file_log import LogContent, fault_of
from cortexfs.sessions.layout import EVENTS, Address
from cortexfs.sessions.log import LEAP
from cortexfs.sessions.log_facts import Scan, Scanned

PREFACE = 4096  # bytes of a log's first line that are searched for a format
THREADS = 4  # each holds some MiB of a log that it reads


class _Wish:
    def __init__(self, address: Address, unclean: bool) -> None:
        self.address = address
        self.unclean = unclean
        self.loaded: LogContent | None = None
        self.error: Exception | None = None


class Loading:
    def __init__(self, root: Path, descriptors: Descriptors) -> None:
        self._root = root
        self._descriptors = descriptors
        self._wishes: deque[_Wish] = deque()
        self._threads = trio.CapacityLimiter(THREADS)
        self._lot = trio.lowlevel.ParkingLot()

    async def load(self, address: Address, unclean: bool) -> LogContent:
        """Load the session's log, which is empty if there is none. `unclean` says that the last daemon may
        have died while it wrote the log."""
        wish = _Wish(address, unclean)
        self._wishes.append(wish)
        with trio.CancelScope(shield=True):
            while wish.loaded is None and wish.error is None:
                if self._wishes and self._threads.available_tokens:
                    count = max(1, len(self._wishes) // THREADS)
                    wishes = [self._wishes.popleft() for _ in range(count)]
                    try:
                        await trio.to_thread.run_sync(self._load_all, wishes, limiter=self._threads)
                    finally:
                        self._lot.unpark_all()
                else:
                    await self._lot.park()
        if wish.error:
            raise wish.error
        assert wish.loaded
        return wish.loaded

    def _load_all(self, wishes: list[_Wish]) -> None:
        for wish in wishes:
            try:
                wish.loaded = self._load(wish.address, wish.unclean)
            except Exception as error:  # `load` raises it; the rest of the share is loaded
                wish.error = error

    def _folder(self, address: Address) -> Path:
        return self._root.joinpath(*address.parts)

    def _load(self, address: Address, unclean: bool) -> LogContent:
        path = self._folder(address) / EVENTS
        try:
            opened = self._descriptors.take(path)
        except FileNotFoundError:
            return LogContent(Scan(), 0)
        except OSError as error:
            raise fault_of(error, "opened") from None
        try:
            return self._examine(address, opened.descriptor, unclean)
        except OSError as error:
            raise fault_of(error, "read") from None
        finally:
            self._descriptors.release(opened)

    def _examine(self, address: Address, descriptor: int, unclean: bool) -> LogContent:
        written = os.fstat(descriptor).st_mtime
        known = checkpoint.read(self._folder(address), descriptor)
        found = _scan(descriptor, known.scanned if known else None, unclean)
        if not found.size or 0 in found.damaged:
            _refuse_newer(descriptor)
        loaded = LogContent(found, found.facts.last, is_made=True)
        if known:
            loaded.checkpoint = known.scanned.size, known.state
        if found.read > found.size:
            _repair(self._folder(address) / EVENTS, descriptor, loaded)
        if found.damaged:
            places = ", ".join(map(str, found.damaged[:10]))
            remark = f"lines of the log are damaged, at byte {places}; they are left as they are"
            loaded.remarks.append(remark)
        if unclean:  # bytes that were not synced are on disk before a reader sees a done in them
            with suppress(OSError):
                os.fsync(descriptor)
        elif not loaded.torn:
            loaded.derived = min(layout.derived(self._folder(address)), found.size)
        # A file may also seem to be from the future, if the clock was behind at that boot or is now.
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        if not booted <= written <= time.time():
            # Ids of events that were seen, and lost with the machine's power, must not be used again.
            loaded.newest += LEAP
        return loaded


def _scan(descriptor: int, known: Scanned | None, unclean: bool) -> Scan:
    """Returns the scan of a log, without a start at its end whose message a crash cut off: no reader has seen
    this start, and its message can be sent again."""
    found = disk.scan(descriptor, known)
    if (unclean or found.read > found.size) and found.begun is not None:
        first, found = found, disk.scan(descriptor, known, found.begun)
        found.read = first.read
    return found


class _Format(msgspec.Struct):
    format: int


def _refuse_newer(descriptor: int) -> None:
    """Refuse a log whose first line names its format: logs of this version name none."""
    with suppress(msgspec.MsgspecError):
        line = os.pread(descriptor, PREFACE, 0).partition(b"\n")[0]
        number = msgspec.json.decode(line, type=_Format).format
        raise Fault(
            "ENOTSUP",
            f"the log has format {number}, of a newer CortexFS; update this one to use the session",
        )


def _repair(path: Path, descriptor: int, loaded: LogContent) -> None:
    """Cut off the rest of a write that a crash broke off, and keep it beside the log."""
    end = loaded.scan.size
    torn = f"the last {loaded.scan.read - end} bytes of the log were not written whole"
    try:
        copy = disk.cut(path, descriptor, end)
        loaded.remarks.append(f"{torn}; they were cut off, and are in {copy}")
    except OSError as error:
        loaded.torn = True
        loaded.remarks.append(f"{torn}; they cannot be cut off: {error.strerror}")
