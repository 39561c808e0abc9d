"""The ledger of what each user's calls of models have cost: a file of lines for each user.

    home/1000/model/.usage      below the logs of runs; core/models/usage.py defines a line, the tree shows it

Rules: a line is in its file when `add` returns, so that a kill of the daemon does not lose it. It is not
fsynced, as a call would wait for the disk. Calls that end together share a write. A file of many lines is
replaced by a file of their sums. A full disk does not block calls: the sums in memory count, and are written
with the next line.
This file must never know limits or calls.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

import msgspec
import trio

from cortexfs.core.models.usage import UsageKey, UsageLine, decoded, summed
from cortexfs.core.tree.session_places import USAGE_NAME
from cortexfs.state import whole_files

KEPT_DAYS = 400
MANY = 2000  # lines of a file that are summed up
USERS = 256  # with sums in memory

log = logging.getLogger("cortexfs.state.usage_ledger")

_Sums = dict[UsageKey, UsageLine]


class UsageLedger:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._sums: dict[int, _Sums] = {}  # by user; the oldest entries go
        self._pending: dict[int, _Sums] = {}  # by user, not yet in the files
        self._lines: Counter[int] = Counter()  # in a user's file
        self._turn = trio.Lock()  # its holder reads or writes the files

    async def of(self, uid: int) -> Iterable[UsageLine]:
        """Returns the sums of a user by day, model and agent."""
        if uid not in self._sums:
            async with self._turn:
                if uid not in self._sums:
                    lines = await trio.to_thread.run_sync(self._load, uid)
                    while len(self._sums) >= USERS:
                        del self._sums[next(iter(self._sums))]
                    self._sums[uid] = summed([*lines, *self._pending.get(uid, {}).values()])
        return self._sums[uid].values()

    async def add(self, uid: int, line: UsageLine) -> None:
        """Count the cost of a call. This must not be cancelled."""
        for sums in (self._pending.setdefault(uid, {}), self._sums.get(uid)):
            if sums is not None:
                sums[line.key] = sums[line.key] + line if line.key in sums else line
        async with self._turn:
            if pending := self._pending:  # else the previous holder of the turn has written it
                self._pending = {}
                rest = await trio.to_thread.run_sync(self._write, pending)
                for uid_, sums in rest.items():
                    self._pending[uid_] = summed([*sums.values(), *self._pending.get(uid_, {}).values()])

    def _path(self, uid: int) -> Path:
        return self._root / "home" / str(uid) / "model" / USAGE_NAME

    def _load(self, uid: int) -> list[UsageLine]:
        try:
            data = self._path(uid).read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path(uid), error.strerror)
            return []
        oldest = str(date.today() - timedelta(days=KEPT_DAYS))
        lines = [line for line in decoded(data) if line.day >= oldest]
        self._lines[uid] = data.count(b"\n")
        if not data.endswith(b"\n") or self._lines[uid] > MANY:
            self._sum_up(uid, lines)
        return lines

    def _write(self, pending: dict[int, _Sums]) -> dict[int, _Sums]:
        """Append to the files. Returns the sums that could not be written."""
        rest = {}
        for uid, sums in pending.items():
            try:
                self._append(uid, list(sums.values()))
            except OSError as error:
                log.warning("%s cannot be written: %s", self._path(uid), error.strerror)
                rest[uid] = sums
        return rest

    def _append(self, uid: int, lines: list[UsageLine]) -> None:
        path = self._path(uid)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0, opener=whole_files.private) as file:
            whole_files.append(file.fileno(), _encoded(lines), file.tell())  # half a line is useless
        self._lines[uid] += len(lines)
        if self._lines[uid] > MANY:
            self._load(uid)

    def _sum_up(self, uid: int, lines: list[UsageLine]) -> None:
        sums = list(summed(lines).values())
        whole_files.replace(self._path(uid), [_encoded(sums)], 0o600)
        self._lines[uid] = len(sums)


def _encoded(lines: list[UsageLine]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
