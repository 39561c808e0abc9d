"""The logs of temp sessions, which are in memory only, and the limits of this memory.

Rules: each log is bounded, all logs of one user are, and all together. An ended log holds no memory.
This file must never know which connection a session ends with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cortexfs.core.errors import Fault
from cortexfs.linux.subordinates import person_of
from cortexfs.sessions.log import Log, WriteLoad
from cortexfs.sessions.log_facts import Scan

SHARE = 4  # one user has at most one part in four of all memory, so he locks out only himself


class MemoryBudget:
    """The memory that all temp sessions may have together, and the temp sessions of one user."""

    def __init__(self, each: int, total: int) -> None:
        self.each = each
        self.total = total
        self.used = 0
        self._of_user: Counter[int] = Counter()

    def admit(self, person: int, size: int) -> None:
        share = self.total // SHARE
        if self._of_user[person] + size > share:
            raise Fault("ENOSPC", f"your temp sessions together may hold at most {share >> 20} MiB; end some")
        if self.used + size > self.total:
            mib = self.total >> 20
            raise Fault("ENOSPC", f"the temp sessions of all users hold {mib} MiB, the limit; end some")

    def take(self, person: int, size: int) -> None:
        self.used += size
        self._of_user[person] += size
        if not self._of_user[person]:
            del self._of_user[person]


class MemoryLog(Log):
    """The log of a temp session: bounded, in memory, and as durable as that."""

    COST = 4096  # bytes of an empty session, so that the number of sessions is bounded, too

    def __init__(self, budget: MemoryBudget, uid: int) -> None:
        self._budget = budget
        self._person = person_of(uid)
        self._bytes = bytearray()
        budget.admit(self._person, self.COST)
        budget.take(self._person, self.COST)
        super().__init__(Scan(), 0, lambda _: None, WriteLoad())

    async def fetch(self, offset: int, size: int) -> bytes:
        return bytes(self._bytes[offset : offset + size])

    def append(self, lines: Sequence[bytes]) -> None:
        size = sum(map(len, lines))
        if self.size + size > self._budget.each:
            mib = self._budget.each >> 20
            raise Fault("ENOSPC", f"a temp session holds at most {mib} MiB; begin another, or a private one")
        self._budget.admit(self._person, size)
        super().append(lines)
        if self.pending:
            lines, data = self.take()
            self._budget.take(self._person, size)
            self._bytes += data
            self.written(lines, data)
            self.on_disk(self.size, self.last)

    def end(self) -> None:
        if not self.ended:
            self._budget.take(self._person, -self.COST - len(self._bytes))
        super().end()
        self._bytes = bytearray()
