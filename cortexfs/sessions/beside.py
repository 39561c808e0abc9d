"""The files beside the logs (layout.py), made anew when a log has new events.

Main path: `outdate` notes a log, and `run` brings the files beside it up to date, many logs in a pass.

Rules: the state changes on the trio thread only, files are written in a thread only. A pass that has begun is
finished, even if its caller is cancelled. Code that reads these files calls `freshen` first. A list of
session/index (`Indexes`) that an earlier daemon wrote is believed until something is removed, as a look at
each of 100,000 sessions takes seconds.
This file must never know how a log is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from cortexfs.core.errors import bare
from cortexfs.core.names import INDEX
from cortexfs.sessions import disk, layout
from cortexfs.sessions.disk import Descriptors
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.layout import Address, DerivedFacts, by_use, text

SHARE = 128  # logs in a pass, for which readers of the files beside them wait
PAUSE = 0.05  # seconds; runs that end together share a pass


class Beside:
    """The files beside all logs."""

    def __init__(
        self,
        root: Path,
        descriptors: Descriptors,
        threads: trio.CapacityLimiter,
        report: Callable[[Address, str], None],
    ) -> None:
        self.indexes = Indexes(root)
        self._descriptors = descriptors
        self._threads = threads
        self._report = report
        self._stale: dict[FileLog, None] = {}
        self._more = trio.lowlevel.ParkingLot()
        self._turn = trio.Lock()
        self._renewed: Sequence[FileLog] = ()  # logs whose files are being made now

    @property
    def is_behind(self) -> bool:
        return bool(self._stale or self._turn.locked())

    def outdate(self, log: FileLog) -> None:
        """Note that the files beside this log are behind it."""
        self._stale.pop(log, None)
        self._stale[log] = None
        self._more.unpark()

    def forget(self, log: FileLog) -> None:
        self._stale.pop(log, None)

    async def run(self) -> None:
        while True:
            while not self._stale:
                await self._more.park()
            await self.catch_up()
            await trio.sleep(PAUSE)

    async def catch_up(self) -> None:
        """Make one pass over some of the logs whose files are behind."""
        async with self.held():
            await self._derive(list(self._stale)[:SHARE])

    async def renew(self, log: FileLog) -> None:
        """Bring the files beside a log up to date, now."""
        async with self.held():
            await self._derive([log])

    async def renew_held(self, log: FileLog) -> None:
        """Do the same for a caller that keeps other passes waiting (`held`)."""
        if log in self._stale:
            await self._derive([log])

    async def freshen(self, predicate: Callable[[FileLog], bool]) -> None:
        """Bring the files beside these logs up to date if they are behind."""
        if any(map(predicate, (*self._renewed, *self._stale))):
            async with self.held():
                await self._derive([log for log in self._stale if predicate(log)])

    async def ensure(self, sessions: tuple[str, ...]) -> None:
        """Bring the index of an object's folder of sessions up to date."""
        if not self.indexes.knows(sessions):
            async with self.held():
                with suppress(OSError):  # then the index stays as it was
                    await trio.to_thread.run_sync(self.indexes.ensure, sessions, limiter=self._threads)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep other passes waiting meanwhile. It cannot be cancelled."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                yield

    async def _derive(self, logs: Sequence[FileLog]) -> None:
        for log in logs:
            self._stale.pop(log, None)
        facts = [(log, log.visible_facts) for log in logs if log.is_made and not log.ended]
        self._renewed = logs
        errors = await trio.to_thread.run_sync(self._make_all, facts, limiter=self._threads)
        self._renewed = ()
        for log, error in errors.items():
            self._report(log.address, f"the files made from the log are out of date: {error}")

    def _make_all(self, facts: list[tuple[FileLog, DerivedFacts]]) -> dict[FileLog, OSError]:
        """Returns the errors."""
        errors: dict[FileLog, OSError] = {}
        for log, each in facts:
            try:
                self._make(log, each)
            except OSError as error:
                errors[log] = bare(error)
        if facts:
            try:
                self.indexes.write()
            except OSError as error:
                errors[facts[-1][0]] = bare(error)
        return errors

    def _make(self, log: FileLog, facts: DerivedFacts) -> None:
        with self._descriptors.using(log.path) as descriptor:
            start, log.derived = log.derived, 0  # if this fails half-way, the next pass begins anew
            try:
                layout.derive(log.folder, log.address, descriptor, start, facts)
            except OSError:
                (log.folder / "meta.json").unlink(missing_ok=True)  # so does the next daemon
                raise
        log.derived = facts.size
        if start < facts.size:
            self.indexes.used(log.address, facts.cwd)


BY_CWD = 1000  # remembered working directories of an object's sessions, the ones used last
REMEMBERED = 256  # objects whose sessions' order is kept in memory


class Indexes:
    """session/index: kept in memory as an order, so that a run's end does not look at every session."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._orders: dict[Path, dict[str, None]] = {}
        self._changed: dict[Path, tuple[str, ...]] = {}
        self._believes = True  # in the lists that an earlier daemon wrote

    def used(self, address: Address, cwd: str | None) -> None:
        """Note that a session was used just now, in `cwd`. Call `write` after all such notes."""
        above = address.parts[:-1]
        folder, order = self._order(above)
        if next(reversed(order), None) != address.session:
            order.pop(address.session, None)
            order[address.session] = None
            self._changed[folder] = above
        if cwd is not None:
            path = self._by_cwd(folder, cwd)
            if text(path) != address.session:
                self._make(above, "by-cwd")
                _make_room(path.parent)
                disk.replace(path, [address.session.encode() + b"\n"])

    def write(self) -> None:
        """Write each list once, however many of its sessions were used."""
        for folder, above in list(self._changed.items()):
            if folder in self._orders:
                self._write(folder, above, self._orders[folder])
            del self._changed[folder]

    def knows(self, above: tuple[str, ...]) -> bool:
        return self._root.joinpath(*above) in self._orders

    def ensure(self, above: tuple[str, ...]) -> None:
        """Have a correct list of a folder of sessions, whatever an earlier daemon left."""
        if self._root.joinpath(*above).is_dir():
            self._order(above)

    def forget(self) -> None:
        """Look at the folders before the next use: files were removed, or the last daemon died."""
        self._orders.clear()
        self._believes = False

    def removed(self, address: Address, cwd: str | None) -> None:
        """Note that a session was removed. Call `write` after all such notes."""
        folder = self._root.joinpath(*address.parts).parent
        if not (folder / INDEX).is_dir():  # the caller is about to remove the folder, too
            self._orders.pop(folder, None)
            return
        folder, order = self._order(address.parts[:-1])
        order.pop(address.session, None)
        self._changed[folder] = address.parts[:-1]
        if cwd and text(path := self._by_cwd(folder, cwd)) == address.session:
            path.unlink()

    def renamed(self, address: Address, name: str, cwd: str | None) -> None:
        """Give a session its new name, in its old place."""
        above = address.parts[:-1]
        folder, order = self._order(above)
        self._orders[folder] = {name if each == address.session else each: None for each in order}
        self._write(folder, above, self._orders[folder])
        if cwd and text(path := self._by_cwd(folder, cwd)) == address.session:
            disk.replace(path, [name.encode() + b"\n"])

    def _order(self, above: tuple[str, ...]) -> tuple[Path, dict[str, None]]:
        folder = self._root.joinpath(*above)
        if folder not in self._orders:
            if len(self._orders) >= REMEMBERED:
                self.write()
                self._orders.clear()
            if names := _names(folder) if self._believes else []:
                self._orders[folder] = dict.fromkeys(names)
            else:
                self._orders[folder] = dict.fromkeys(by_use(folder))
                disk.clear_graves(folder)
                self._write(folder, above, self._orders[folder])  # a crash may have left it behind
        return folder, self._orders[folder]

    def _write(self, folder: Path, above: tuple[str, ...], order: dict[str, None]) -> None:
        self._make(above)
        newest = list(reversed(order))
        disk.replace(folder / INDEX / "list", [f"{name}\n".encode() for name in newest])
        if newest:
            disk.replace(folder / INDEX / "current", [f"{newest[0]}\n".encode()])
        else:
            (folder / INDEX / "current").unlink(missing_ok=True)

    def _make(self, above: tuple[str, ...], *below: str) -> None:
        disk.make_folder(self._root, (*above, INDEX, *below))

    @staticmethod
    def _by_cwd(folder: Path, cwd: str) -> Path:
        return folder / INDEX / "by-cwd" / hashlib.sha256(os.fsencode(cwd)).hexdigest()[:32]


def _names(folder: Path) -> list[str]:
    """Returns the names on the list, the last used at the end, or none if any has come or gone since."""
    path = folder / INDEX / "list"
    with suppress(OSError):
        if path.stat(follow_symlinks=False).st_mtime_ns > folder.stat().st_mtime_ns:
            return text(path).split()[::-1]
    return []


def _make_room(by_cwd: Path) -> None:
    """Forget the directories that were used longest ago, as else users could make files here without end."""
    entries = [entry for entry in os.scandir(by_cwd) if not entry.name.startswith(".")]
    if len(entries) >= BY_CWD:
        entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in entries[: BY_CWD // 4]:
            os.unlink(entry)
