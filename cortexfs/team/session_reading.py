"""The sessions of the team, as far as their stream was read: one TeamLog for each.

    while found := await logs.catch_up():     what is new of all sessions; each piece that counts is told
        ...                                   `counted(log, machine, piece)` at once
        await logs.note(found)                the daemon has it on its disk
    known = await logs.known(key)             one session, as the stream has it now

Rules: a log has no gap: where the stream did not answer, it is read on before anything else of it counts, as
whoever takes a session cuts off what its own log lacks. The logs change in one hand, whose turn it is. What
has been read is noted when the daemon has it on its disk. The stream may be lost: then all is read, and each
owner stores its logs again.
This file must never know what a daemon does with a piece.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.team import keys
from cortexfs.team.nats_client import sequence_of
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import read, written
from cortexfs.team.session_log import LogKey, StreamPiece, TeamLog, piece_of
from cortexfs.team.session_store import LogStore

MEET_SECONDS = 5.0  # after which a machine that is not in the directory is none
MAX_LOGS = 100_000
MAX_OF_ONE = MAX_LOGS // 4  # of those that one machine has begun

log = logging.getLogger("cortexfs")


class _Cursor(msgspec.Struct):
    """The stream that was read, and the number of the last message that was."""

    created: str = ""
    sequence: int = 0


class NotMet(Fault):
    """A machine is not known yet, nor is the worth of its word."""


class TeamLogs:
    def __init__(
        self,
        stream: LogStore,
        cursor: Path,
        key_of: Callable[[str], bytes],
        counted: Callable[[TeamLog, str, StreamPiece], None],
    ) -> None:
        self._stream = stream
        self._path = cursor
        self._key_of = key_of
        self._counted = counted
        self._cursor = _Cursor()
        self._strangers: dict[str, float] = {}  # machines that are not known, and since when
        self._begun: Counter[str] = Counter()  # logs that are known by a machine's word first
        self.logs: dict[LogKey, TeamLog] = {}
        self._unread: set[LogKey] = set()  # of which the stream has more than was read
        self.turn = trio.Lock()

    def load(self) -> None:
        self._cursor = read(self._path, _Cursor, "how far the sessions of a team were read") or _Cursor()

    async def look(self) -> bool:
        """Returns True if it is another stream than the one that was read: then all is read."""
        created, last = await self._stream.look()
        if created == self._cursor.created and last >= self._cursor.sequence:
            return False
        if self._cursor.created:
            log.warning("the stream of the team's sessions was lost; each owner stores its own again")
        async with self.turn:
            self._cursor = _Cursor(created)
            self.logs.clear()
            self._unread.clear()
            self._begun.clear()
        return True

    async def catch_up(self) -> int:
        """Read some of what is new; returns the number of the last message, or 0 where nothing is."""
        async with self.turn:
            found = await self._stream.get("ctx.log.>", self._cursor.sequence + 1)
            for one in found:
                await self._take_in(one)
        return sequence_of(found[-1]) if found else 0

    async def note(self, sequence: int) -> None:
        """All up to that message is on the disk of this machine."""
        self._cursor.sequence = max(self._cursor.sequence, sequence)
        await trio.to_thread.run_sync(written, self._path, self._cursor)

    async def known(self, key: LogKey) -> TeamLog:
        async with self.turn:
            await self.read(key)
            return self.logs[key]

    async def again(self, key: LogKey) -> None:
        """The log here lacks something: tell it from its beginning."""
        async with self.turn:
            try:
                await self.read_anew(key)
            except Fault as fault:
                log.warning("a session cannot be read again: %s", fault.message)

    # -- where the turn is the caller's

    async def read_anew(self, key: LogKey) -> None:
        self.logs[key] = TeamLog(key)
        await self.read(key)

    async def read(self, key: LogKey) -> None:
        """All that the stream has of a session beyond what is known."""
        known = self.logs.setdefault(key, TeamLog(key))
        self._unread.add(key)
        while found := await self._stream.get(key.filter, known.sequence + 1):
            for one in found:
                try:
                    self._judge(one)
                except NotMet:
                    raise
                except Fault as fault:
                    _left(one, fault)
        self._unread.discard(key)

    async def _take_in(self, one: Delivery) -> None:
        """One message of the stream. Raises a Fault where the rest of its log does not come."""
        try:
            machine, key = LogKey.of(one.subject)
            if key in self.logs and key not in self._unread:
                self._judge(one)
                return
            if key not in self.logs:
                if len(self.logs) >= MAX_LOGS or self._begun[machine] >= MAX_OF_ONE:
                    raise Fault("EAGAIN", f"there are {MAX_LOGS} sessions already, or {MAX_OF_ONE} of it")
                self._begun[machine] += 1
        except NotMet:
            raise
        except Fault as fault:
            _left(one, fault)
            return
        await self.read(key)

    def _judge(self, one: Delivery) -> None:
        machine, key = LogKey.of(one.subject)
        known, sequence = self.logs[key], sequence_of(one)
        if sequence <= known.sequence:
            return
        self._meet(machine)
        known.sequence = sequence
        piece = piece_of(keys.opened(self._key_of(machine), one.subject, one.data))
        known.take(machine, piece, self._key_of, keys.stamp_of(one.data))
        self._counted(known, machine, piece)

    def _meet(self, machine: str) -> None:
        """Raises NotMet about a machine whose token may still come: what it has said is not to be left."""
        try:
            self._key_of(machine)
        except Fault as fault:
            now = trio.current_time()
            if now - self._strangers.setdefault(machine, now) < MEET_SECONDS:
                raise NotMet(fault.code, fault.message) from None
        else:
            self._strangers.pop(machine, None)  # a machine that is gone for a while is waited for again


def _left(one: Delivery, fault: Fault) -> None:
    if fault.code != "ESTALE":  # a piece of ours, which counted when it was stored
        log.info("a message about a session, %s, is left: %s", one.subject, fault.message)
