"""The files beside the logs (layout.py), made anew when a log has more to tell.

Main path: `outdate` notes a log, and `run` brings what lies beside it up to date, many logs in a pass.

Rules: the state changes on the trio thread only, files are written in a thread only. A pass that has begun is
finished, whoever is cancelled. Whoever looks at these files calls `freshen` first.
This file must never know how a log is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from cortexfs.core.errors import bare
from cortexfs.sessions import layout
from cortexfs.sessions.disk import Descriptors
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.index import Indexes
from cortexfs.sessions.layout import Address, DerivedFacts

SHARE = 128  # logs in a pass: whoever looks at the files of one waits for it
PAUSE = 0.05  # seconds; runs that end together share a pass


class _Pass:
    """The facts about one log for a thread, and the outcome."""

    def __init__(self, log: FileLog, anew: bool) -> None:
        self.log = log
        self.told: DerivedFacts = log.told
        self.anew = anew
        self.error: OSError | None = None


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
        self._renewed: Sequence[FileLog] = ()  # those whose files are being made now
        self._rested = trio.lowlevel.ParkingLot()

    @property
    def is_behind(self) -> bool:
        return bool(self._stale or self._turn.locked())

    def outdate(self, log: FileLog) -> None:
        """The files beside this log are behind it."""
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
        """Make one pass over some of those that are behind."""
        async with self.held():
            await self._derive(list(self._stale)[:SHARE])

    async def renew(self, log: FileLog, anew: bool = False) -> None:
        """Bring the files beside a log up to date, now."""
        async with self.held():
            await self._derive([log], anew)

    async def freshen(self, meant: Callable[[FileLog], bool]) -> None:
        """Bring the files beside these logs up to date where they are not."""
        if any(map(meant, (*self._renewed, *self._stale))):
            async with self.held():
                await self._derive([log for log in self._stale if meant(log)])

    async def ensure(self, sessions: tuple[str, ...]) -> None:
        """Have the index of an object's folder of sessions say what is there."""
        if not self.indexes.knows(sessions):
            async with self.held():
                with suppress(OSError):  # then it says what it said
                    await trio.to_thread.run_sync(self.indexes.ensure, sessions, limiter=self._threads)

    async def rested(self) -> None:
        """Wait until nothing is behind."""
        while self.is_behind:
            await self._rested.park()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """While this lasts nothing else is made; it cannot be cancelled."""
        try:
            with trio.CancelScope(shield=True):
                async with self._turn:
                    yield
        finally:
            self._rested.unpark_all()

    async def _derive(self, logs: Sequence[FileLog], anew: bool = False) -> None:
        for log in logs:
            self._stale.pop(log, None)
        passes = [_Pass(log, anew) for log in logs if log.made and not log.ended]
        self._renewed = logs
        await trio.to_thread.run_sync(self._make_all, passes, limiter=self._threads)
        self._renewed = ()
        for each in passes:
            if each.error:
                self._report(each.log.address, f"the files beside the log are not up to date: {each.error}")

    def _make_all(self, passes: list[_Pass]) -> None:
        for each in passes:
            try:
                self._make(each)
            except OSError as error:
                each.error = bare(error)
        if passes:
            try:
                self.indexes.write()
            except OSError as error:
                passes[-1].error = bare(error)

    def _make(self, each: _Pass) -> None:
        log, told = each.log, each.told
        opened = self._descriptors.take(log.path)
        start = 0 if each.anew else log.derived
        log.derived = 0  # should this fail half-way, the next time begins anew
        try:
            layout.derive(log.folder, log.address, opened.descriptor, start, told)
        finally:
            self._descriptors.release(opened)
        log.derived = told.size
        if each.anew:
            self.indexes.rebuild(log.address)
        elif start < told.size:
            self.indexes.used(log.address, told.cwd)
