"""The way of events from memory to the disk: writes the events that sessions appended, and fsyncs them.

One task writes the events of all sessions, in one worker thread; some other tasks fsync, a few logs at a
turn. The files beside the logs are made elsewhere (beside.py). So an event costs the same however many
sessions there are, and a disk that hangs holds up sessions and not the daemon.

Rules: the state of logs changes on the trio thread only, blocking calls are made in threads only. A round
that has begun is finished, even if its task is cancelled. Errors of the disk become Faults here.
This file must never know which sessions exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from weakref import WeakSet

import trio

from cortexfs.core.errors import bare
from cortexfs.linux.short_waits import Prompt
from cortexfs.sessions import disk
from cortexfs.sessions.beside import Beside
from cortexfs.sessions.file_log import FileLog, LogDisk, fault_of
from cortexfs.sessions.layout import Address, Marks
from cortexfs.sessions.log import Log
from cortexfs.sessions.log_facts import Scan
from cortexfs.state import whole_files

SYNCERS = 4
SYNC_SHARE = 8  # logs that a syncer takes at a turn: a `done` waits for its neighbours
MARKS = 1000  # marks of written sessions above which their file is made anew


class _Job:
    """The facts about one log for a thread, and the outcome."""

    def __init__(self, log: FileLog) -> None:
        self.log = log
        self.size, self.last, self.synced = log.size, log.facts.last, log.synced
        self.lines: list[bytes] = []
        self.data = b""
        self.error: OSError | None = None

    @contextmanager
    def judged(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = bare(error)


class _Queue:
    """Logs that wait for one kind of work: each once, in order."""

    def __init__(self) -> None:
        self._logs: dict[FileLog, None] = {}
        self._lot = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, log: FileLog) -> None:
        self._logs[log] = None
        self._lot.unpark()  # one waiting task takes it

    def discard(self, log: FileLog) -> None:
        self._logs.pop(log, None)

    def take(self, limit: int | None = None) -> list[FileLog]:
        logs = list(self._logs)[:limit]
        for log in logs:
            del self._logs[log]
        return logs

    async def wait(self) -> None:
        while not self._logs:
            await self._lot.park()


def _wants_sync(log: FileLog) -> bool:
    return log.wants_sync if log.mirror is None else log.size > log.here


class Commit:
    """The way of events to the disk, for all sessions.

    Its attributes are the stages of that way (unwritten, unsynced, behind) and the workers of each: an event
    passes from one to the next.
    """

    def __init__(
        self,
        root: Path,
        descriptors: int,
        sync: Callable[[int], None],
        report: Callable[[Address, str], None],
    ) -> None:
        self.root = root
        self.disk = LogDisk(root, descriptors, self._touched)
        self.descriptors = self.disk.descriptors
        self.unclean: dict[Address, None] = {}  # sessions of an earlier daemon that were not opened since
        self._marks = Marks(root)
        self._most_marks = MARKS
        self._in_use: WeakSet[FileLog] = WeakSet()  # a queue holds each log that is not on disk
        self._sync, self._report = sync, report
        self.lost: Callable[[Address], None] = lambda address: None  # called with sessions that lost events
        self._unwritten, self._unsynced = _Queue(), _Queue()
        self._writing = trio.Lock()
        self._prompt = Prompt()
        self._behind: dict[FileLog, None] = {}  # logs that are not synced as far as they are written
        self._threads = trio.CapacityLimiter(SYNCERS + 2)  # our own, as others may use up the common ones
        self.beside = Beside(root, self.descriptors, self._threads, report)

    def _touched(self, log: Log) -> None:
        assert isinstance(log, FileLog)
        self._in_use.add(log)
        if log.pending:
            self._unwritten.add(log)
        elif _wants_sync(log):
            self._want_sync(log)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. Then all appended events are on disk, or reported."""
        if unclean := await trio.to_thread.run_sync(self._marks.load):
            self.unclean = dict.fromkeys(unclean)
            self.beside.indexes.forget()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_writer)
                for _ in range(SYNCERS):
                    nursery.start_soon(self._run_syncer)
                nursery.start_soon(self.beside.run)
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Keep logs, and the files beside them, from being written meanwhile. It cannot be cancelled."""
        with trio.CancelScope(shield=True):
            async with self._writing, self.beside.held():
                yield

    def forget(self, log: FileLog) -> None:
        """End the log of a session that is gone."""
        self._unwritten.discard(log)
        self._unsynced.discard(log)
        self.beside.forget(log)
        self._behind.pop(log, None)
        log.end()

    # Writing.

    async def _run_writer(self) -> None:
        while True:
            await self._unwritten.wait()
            await self._write_round()

    async def _write_round(self) -> None:
        with trio.CancelScope(shield=True):  # a round is finished, even if cancelled
            # The lock lets others run first: a message just accepted has its answer in the same round.
            async with self._writing:
                jobs = [_Job(log) for log in self._unwritten.take() if log.pending]
                for job in jobs:
                    job.lines, job.data = job.log.take()
                await self._prompt.run(partial(self._write_all, jobs))
                self._written(jobs)
                if len(self._marks.marked) > self._most_marks:
                    await self._clear_marks()

    async def _clear_marks(self) -> None:
        """Keep the marks of sessions that are in use, or were not opened since a crash."""
        addresses = [*self.unclean, *(log.address for log in self._in_use if not log.ended)]
        with suppress(OSError):
            await trio.to_thread.run_sync(self._marks.clear, addresses, limiter=self._threads)
        self._most_marks = 2 * len(self._marks.marked) + MARKS

    def _write_all(self, jobs: list[_Job]) -> None:
        for job in jobs:
            is_new = not job.log.is_made
            with job.judged():
                self._write(job)
            if job.error and is_new:
                self._unmake(job.log)

    def _unmake(self, log: FileLog) -> None:
        """Remove the empty file of a session whose first events could not be written."""
        self.descriptors.forget(log.path)
        with suppress(OSError):  # what stays is used by the next write
            if log.path.lstat().st_size:
                return
            log.path.unlink()
        log.is_made = False
        with suppress(OSError):
            log.folder.rmdir()

    def _write(self, job: _Job) -> None:
        log = job.log
        if not log.is_made:
            log.fresh += disk.make_folder(self.root, log.address.parts)
            disk.create(log.path)
            log.fresh.append(log.folder)
            log.is_made = True
        if self._marks.add(log.address):
            log.fresh += [self._marks.path, self.root]
        with self.descriptors.using(log.path, write=True) as descriptor:
            try:
                if log.torn:
                    disk.cut(log.path, descriptor, job.size)
                    log.torn = False
                if log.ragged:
                    disk.shorten(descriptor, job.size)
                    log.ragged = False
                whole_files.append(descriptor, job.data, job.size)
            except OSError:  # if even shortening has failed, the next write begins with that
                log.ragged = True
                raise

    def _written(self, jobs: list[_Job]) -> None:
        for job in jobs:
            log = job.log
            if job.error:
                log.fail(fault_of(job.error, "written"))
                self._report(log.address, f"events are lost: {log.fault}")
                self.lost(log.address)
                continue
            self._behind[log] = None
            changes_facts, wants_sync = log.written(job.lines, job.data), _wants_sync(log)
            if changes_facts:
                self.beside.outdate(log)
            if wants_sync:
                self._want_sync(log)

    # Syncing.

    def _want_sync(self, log: FileLog) -> None:
        if not log.syncing:
            self._unsynced.add(log)

    async def _run_syncer(self) -> None:
        while True:
            await self._unsynced.wait()
            await self._sync_round(SYNC_SHARE)

    async def _sync_round(self, share: int | None) -> None:
        with trio.CancelScope(shield=True):  # a round is finished, even if cancelled
            jobs = [_Job(log) for log in self._unsynced.take(share)]
            for job in jobs:
                job.log.syncing = True
            await trio.to_thread.run_sync(self._sync_all, jobs, limiter=self._threads)
            for job in jobs:
                if job.error:
                    await self._sync_again(job.log, job.error)
                else:
                    self._synced(job)

    def _sync_all(self, jobs: list[_Job]) -> None:
        synced: set[Path] = set()  # folders that these logs share, synced once for all
        for job in jobs:
            with job.judged():
                self._sync_one(job, synced)

    def _sync_one(self, job: _Job, synced: set[Path]) -> None:
        log = job.log
        with self.descriptors.using(log.path, write=log.doubtful) as descriptor:
            if log.doubtful:
                disk.rewrite(descriptor, job.synced, job.size)
            log.doubtful = True
            self._sync(descriptor)
            log.doubtful = False
        for path in log.fresh:
            if path not in synced:
                disk.sync_path(path, self._sync)
                synced.add(path)
        log.fresh = []

    def _synced(self, job: _Job) -> None:
        log, holds_done = job.log, job.log.holds_done
        log.syncing = False
        if job.size == log.size:
            self._behind.pop(log, None)
        log.here = max(log.here, job.size)
        if log.mirror is None:
            log.on_disk(job.size, job.last)
        else:
            log.only_here(job.size, job.last, log.mirror)
        if holds_done and not log.ended:
            self.beside.outdate(log)
        if _wants_sync(log) and not log.ended:
            self._want_sync(log)

    async def _sync_again(self, log: FileLog, error: OSError) -> None:
        """After a failed fsync, all since the last good one is uncertain: read it, and write it once more."""
        async with self._writing:
            if log.ended:
                return
            self._report(log.address, f"the log may have lost events, and is read again: {error.strerror}")
            job = _Job(log)
            found = await trio.to_thread.run_sync(self._look_again, job, limiter=self._threads)
            log.syncing = False
            if found and found.size < log.size:
                log.adopt(found)
                log.fail_sync(fault_of(error, "kept"))
                self.beside.outdate(log)
            elif job.error:
                log.fail_sync(fault_of(job.error, "kept"))
            else:
                self._synced(job)

    def _look_again(self, job: _Job) -> Scan | None:
        """Read the log through a new descriptor. Returns its scan if it is shorter than thought; else syncs
        it again."""
        self.descriptors.forget(job.log.path)
        with job.judged():
            with self.descriptors.using(job.log.path) as descriptor:
                found = disk.scan(descriptor)
            if found.size < job.size:
                job.log.ragged = True
                return found
            self._sync_one(job, set())
        return None

    async def _finish(self) -> None:
        if self._unwritten:
            await self._write_round()
        for log in self._behind:
            self._unsynced.add(log)
        await self._sync_round(None)
        while self.beside.is_behind:
            await self.beside.catch_up()
        addresses = [*self.unclean, *(log.address for log in self._behind)]
        with suppress(OSError):  # on a read-only disk the marks stay, and the next start reads the logs
            await trio.to_thread.run_sync(self._marks.clear, addresses)
        self.descriptors.close()
