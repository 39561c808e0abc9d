"""The daemon's sessions: opens their logs, and lists, shows, removes and clears them.

    sessions = Sessions(root, report)
    await nursery.start(sessions.run)         until cancelled; then all is on disk
    log = await sessions.open(address)        append, durable, lines: cortexfs/sessions/log.py
    sessions.unclean                          sessions that were being written when the last daemon died

Rules: a session's log exists once in memory, for as long as it is used. Its file is created by the first
append, so looking for a session leaves no trace. A removed session ends for its readers and writers.
This file must never know what a run does, nor sockets or FUSE.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions import checkpoint, disk, layout
from cortexfs.sessions.file_log import FileLog, fault_of
from cortexfs.sessions.layout import EVENTS, Address, Info, Space
from cortexfs.sessions.load import Loading
from cortexfs.sessions.log import Most
from cortexfs.sessions.memory_log import MemoryBudget, MemoryLog
from cortexfs.sessions.quota import Shares
from cortexfs.sessions.removal import TOGETHER, Removal, discard
from cortexfs.sessions.writer import Commit

GONE = "there is no such session; `ctx session list` shows those that are there"

log = logging.getLogger("cortexfs")


class SessionLimits(msgspec.Struct, frozen=True):
    descriptors: int = 2048  # open files, a quarter of what the process may have at most
    temp_session: int = 16 << 20
    temp_total: int = 256 << 20


class Policy(msgspec.Struct, frozen=True):
    """The rule by which sessions are removed: unused for `age` seconds, or not among the `count` newest of an
    object."""

    age: float | None = None
    count: int | None = None
    keep: frozenset[str] = frozenset({"default"})


class Sessions:
    """All sessions on disk, and the temp sessions in memory.

    Its attributes are the callbacks for sessions that go or move, the logs that are open, changing or
    leaving, and the parts that write, read and count them.
    """

    def __init__(
        self,
        root: Path,
        report: Callable[[Address, str], None],
        *,
        limits: SessionLimits | None = None,
        removed: Callable[[Address], None] = lambda _: None,
        vacate: Callable[[Address], None] = lambda _: None,
        sync: Callable[[int], None] = os.fsync,
        most: Most | None = None,
    ) -> None:
        limits = limits or SessionLimits()
        if paths := disk.given_away(root):
            log.warning("%s and others belong to users, not to root; run: chown -R root: %s", paths[0], root)
        self.root = root
        self._report = report
        self._removed = removed
        self._vacate = vacate  # drops a session from memory; raises EBUSY if it is in use
        descriptors = min(limits.descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._commit = Commit(root, descriptors, sync, report)
        self._loading = Loading(root, self._commit.descriptors)
        self._logs: WeakValueDictionary[Address, FileLog] = WeakValueDictionary()
        self._changing: dict[Address, trio.Event] = {}  # being opened or removed
        self._leaving: list[Removal] = []  # the removals that wait for their turn
        self._temps: dict[Address, MemoryLog] = {}
        self._shares = Shares(root, most or Most())
        self.opened: Callable[[FileLog], None] = lambda _: None  # called with each log that comes into memory
        self._budget = MemoryBudget(limits.temp_session, limits.temp_total)
        self.run = self._commit.run

    def on_loss(self, callback: Callable[[Address], None]) -> None:
        """Have `callback` called when a log has lost events that readers were to see."""
        self._commit.lost = callback

    @property
    def unclean(self) -> tuple[Address, ...]:
        """Sessions that were written to when the last daemon died, and were not opened since."""
        return tuple(self._commit.unclean)

    def folder(self, address: Address) -> Path:
        return self.root.joinpath(*address.parts)

    # Logs.

    async def open(self, address: Address) -> FileLog:
        """Returns the session's log, which is empty if the session does not exist."""
        async with self._change(address):
            if log := self._logs.get(address):
                return log
            share = await self._shares.of(address.space)
            unclean = address in self._commit.unclean
            loaded = await self._loading.load(address, unclean)
            log = self._logs[address] = FileLog(self._commit.disk, address, loaded, share)
            self._commit.unclean.pop(address, None)
            for remark in loaded.remarks:
                self._report(address, remark)
            if loaded.is_made and loaded.derived < loaded.scan.size:  # a daemon died before it wrote the rest
                self._commit.beside.outdate(log)
            self.opened(log)
            return log

    @asynccontextmanager
    async def _change(self, *addresses: Address) -> AsyncIterator[None]:
        """Keep other tasks from opening, removing or moving these sessions meanwhile."""
        while changing := [self._changing[each] for each in addresses if each in self._changing]:
            await changing[0].wait()
        changed = trio.Event()
        self._changing |= dict.fromkeys(addresses, changed)
        try:
            yield
        finally:
            for address in addresses:
                del self._changing[address]
            changed.set()

    def temp(self, address: Address) -> MemoryLog:
        """Returns the log of a temp session, which ends with `remove_temp` and leaves nothing."""
        if address not in self._temps:
            self._temps[address] = MemoryLog(self._budget, address.space.uid)
        return self._temps[address]

    def remove_temp(self, address: Address) -> None:
        if log := self._temps.pop(address, None):
            log.end()

    # Looking.

    def visible(self, address: Address) -> int | None:
        """Returns the bytes of its log that may be seen, or None if the log is not open and all may be."""
        log = self._logs.get(address)
        return log.visible if log else None

    async def freshen(self, parts: tuple[str, ...]) -> None:
        """Bring the files beside logs up to date: those of a session, or of all below a folder."""
        for address in [each for each in self._commit.unclean if _is_below(each, parts)]:
            with suppress(Fault):
                log = await self.open(address)
                if log.is_made:
                    await self._commit.beside.renew(log)
        await self._commit.beside.freshen(lambda log: _is_below(log.address, parts))

    async def ordered(self, sessions: tuple[str, ...]) -> None:
        await self.freshen(sessions)
        await self._commit.beside.ensure(sessions)

    def grew(self, address: Address, size: int) -> None:
        """Count the files that an agent has kept beside a session's log for its user's share."""
        self._shares.grew(address.space, size)

    # Removing and moving.

    async def discard(self, work: Callable[[], None]) -> None:
        """Run blocking work that removes files made from logs, or an empty folder, while nothing is written.
        Its OSErrors pass."""
        async with self._commit.exclusive():
            await trio.to_thread.run_sync(work)
            self._commit.beside.indexes.forget()

    async def remove(self, address: Address) -> None:
        """Remove a session and all its files. Its readers come to their end, its writers get ENOENT.

        Removals that wait for their turn share it, so that thousands do not wait for as many syncs.
        """
        async with self._change(address):
            removal = Removal(address, self.folder(address))
            self._leaving.append(removal)
            async with self._commit.exclusive():
                if not removal.is_over:
                    await self._remove(self._leaving)
        if isinstance(removal.error, FileNotFoundError):
            raise Fault("ENOENT", GONE)
        if removal.error:
            raise fault_of(removal.error, "removed")

    async def _remove(self, leaving: list[Removal]) -> None:
        turn = leaving[:TOGETHER]
        del leaving[:TOGETHER]
        for each in turn:
            if log := self._logs.pop(each.address, None):
                self._commit.forget(log)
            self._removed(each.address)
            self._commit.unclean.pop(each.address, None)
        indexes = self._commit.beside.indexes
        await trio.to_thread.run_sync(discard, turn, self._commit.descriptors, indexes)
        for each in turn:
            if not each.error:
                self._shares.removed(each.address.space, each.size)

    async def rename(self, address: Address, name: str) -> None:
        """Give an unused session another name, which no session has. Its open log ends, like the log of a
        removed session."""
        target = msgspec.structs.replace(address, session=name)
        if "+" in address.session + name:
            raise Fault("EPERM", "a name with + is the team's, so no session is renamed from or to it")
        await self.freshen(address.parts[:-1])  # the files beside it go along as they are
        async with self._change(address, target), self._commit.exclusive():
            await self._rename(address, target)

    async def _rename(self, address: Address, target: Address) -> None:
        if log := self._logs.get(address):  # it may have got events since the files beside it were looked at
            await self._commit.beside.renew_held(log)
        log = self._logs.get(address)
        if address in self._commit.unclean or (log and (log.pending or log.fault)):
            raise Fault("EBUSY", "the session is being written; try again")
        for each in (address, target):  # the new name may have been opened when it did not exist
            self._vacate(each)
            if log := self._logs.pop(each, None):
                self._commit.forget(log)
        self._removed(address)
        try:
            await trio.to_thread.run_sync(self._move, address, target)
        except FileNotFoundError:
            raise Fault("ENOENT", GONE) from None
        except OSError as error:
            raise fault_of(error, "renamed") from None

    def _move(self, address: Address, target: Address) -> None:
        folder, new = self.folder(address), self.folder(target)
        cwd = layout.text(folder / "cwd")
        os.rename(folder, new)
        disk.sync_path(new.parent)
        for each in (folder, new):
            self._commit.descriptors.forget(each / EVENTS)
        layout.renamed(new, target.session)
        self._commit.beside.indexes.renamed(address, target.session, cwd)

    async def cut(self, address: Address, end: int) -> None:
        """End a log at byte `end`, and keep the bytes behind it in a file beside it. An open log ends;
        opening it again returns the shorter log."""
        async with self._change(address), self._commit.exclusive():
            if log := self._logs.pop(address, None):
                self._commit.forget(log)
            try:
                await trio.to_thread.run_sync(self._cut, address, end)
            except OSError as error:
                raise fault_of(error, "cut") from None

    def _cut(self, address: Address, end: int) -> None:
        folder = self.folder(address)
        for name in ("meta.json", checkpoint.NAME):  # they cover more than there is
            (folder / name).unlink(missing_ok=True)
        with self._commit.descriptors.using(folder / EVENTS, write=True) as descriptor:
            if os.fstat(descriptor).st_size > end:
                copy = disk.cut(folder / EVENTS, descriptor, end)
                self._report(address, f"the team has other events from here on; this machine's are in {copy}")
            os.fsync(descriptor)
        self._commit.descriptors.forget(folder / EVENTS)

    async def expired(self, space: Space, policy: Policy) -> list[Info]:
        """Returns the sessions that `collect` would remove: none that is in use, runs, is an object's newest,
        or is kept."""
        now = time.time()
        found: list[Info] = []
        for class_, object in await trio.to_thread.run_sync(layout.objects, self.root, space):
            infos = await trio.to_thread.run_sync(layout.listing, self.root, space, class_, object)
            for rank, info in enumerate(infos):
                old = policy.age is not None and now - info.updated > policy.age
                many = policy.count is not None and rank >= policy.count
                is_kept = info.address.session in policy.keep or info.address in self._logs
                if rank and (old or many) and info.state != "active" and not is_kept:
                    found.append(info)
        return found

    async def collect(self, infos: list[Info]) -> list[Info]:
        """Remove these sessions, except those used since they were listed. Returns the removed ones."""
        removed: list[Info] = []
        for info in infos:
            address = info.address
            with suppress(FileNotFoundError):
                stat = await trio.to_thread.run_sync(os.stat, self.folder(address) / EVENTS)
                if address not in self._logs and stat.st_size == info.size and stat.st_mtime == info.updated:
                    await self.remove(address)
                    removed.append(info)
        return removed


def _is_below(address: Address, parts: tuple[str, ...]) -> bool:
    return address.parts[: len(parts)] == parts
