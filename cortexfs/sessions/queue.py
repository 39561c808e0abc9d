"""Logs that wait for one kind of work.

This file must never know what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio

from cortexfs.sessions.file_log import FileLog


class Queue:
    """Each once, in order."""

    def __init__(self) -> None:
        self._logs: dict[FileLog, None] = {}
        self._lot = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[FileLog]:
        return iter(self._logs)

    def add(self, log: FileLog) -> None:
        self._logs[log] = None
        self._lot.unpark()  # one takes it

    def add_last(self, log: FileLog) -> None:
        self.discard(log)
        self.add(log)

    def discard(self, log: FileLog) -> None:
        self._logs.pop(log, None)

    def take(self, limit: int | None = None) -> list[FileLog]:
        taken = list(self._logs)[:limit]
        for log in taken:
            del self._logs[log]
        return taken

    async def wait(self) -> None:
        while not self._logs:
            await self._lot.park()
