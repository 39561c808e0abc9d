"""The stream with the sessions of the team, and the sessions as far as it was read: one TeamLog for each.

    while found := await logs.catch_up():     what is new of all sessions; each piece that counts is told
        ...                                   `counted(log, machine, piece)` at once
        await logs.note(found)                the daemon has it on its disk
    known = await logs.known(key)             one session, as the stream has it now

Rules: a log has no gap. If the stream did not answer, the log is read on before any later piece counts:
taking a session cuts off the part that the taker lacks. Only the holder of `turn` changes the logs. The read
position is written after the daemon has the data on its disk. If the stream is lost, all is read again, and
each owner stores its logs again. A piece is stored behind the last message about its session that is known
here, or not at all.
This file must never know what a daemon does with a piece.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.team import keys, nats_client, subjects
from cortexfs.team.nats_client import Client, sequence_of
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import read, written
from cortexfs.team.session_log import LogKey, StreamPiece, TeamLog, piece_of

MEET_SECONDS = 5.0  # after which a machine that is not in the directory counts as none
MAX_LOGS = 100_000
MAX_OF_ONE = MAX_LOGS // 4  # of the logs that one machine has begun
BATCH = 128
BATCH_BYTES = 4 << 20
_WRONG_SEQUENCE = 10071

log = logging.getLogger("cortexfs")


class LogStore:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def look(self) -> tuple[str, int]:
        """Returns the time when the stream was made, and the number of its last message."""
        deliveries = await self._client.request(subjects.LOG_INFO, b"")
        answer = nats_client.stream_answer(deliveries)
        if answer.error:
            raise Fault("EHOSTDOWN", f"the team's server refuses: {answer.error.description}")
        return answer.created, answer.state.last_seq

    async def get(self, filter_: str, first: int) -> list[Delivery]:
        """Returns some messages from that number on; none if there are no more."""
        request = {"seq": first, "batch": BATCH, "max_bytes": BATCH_BYTES, "next_by_subj": filter_}
        return await nats_client.batch(self._client, subjects.LOG_GET, request)

    async def publish(self, team_log: TeamLog, start: int, data: bytes) -> int:
        """Store a piece behind the known ones. Returns its number, or 0 if the stream has more."""
        subject = team_log.key.subject(self._client.name)
        now = max(time.time(), (team_log.removed + 1.5) / 1000)  # after the removal by any clock
        sealed = keys.seal(self._client.key, subject, msgspec.msgpack.encode(StreamPiece(start, data)), now)
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(team_log.sequence),
            "Nats-Expected-Last-Subject-Sequence-Subject": team_log.key.filter,
        }
        deliveries = await self._client.request(subject, sealed, headers=headers)
        answer = nats_client.stored(deliveries, _WRONG_SEQUENCE)
        if answer.error is not None:
            return 0
        self._client.publish(subjects.said(self._client.name), b"")
        return answer.seq


class _Cursor(msgspec.Struct):
    """The stream that was read, and the number of the last message read."""

    created: str = ""
    sequence: int = 0


class NotMet(Fault):
    """A machine is not known yet, so its messages cannot be judged."""


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
        self._strangers: dict[str, float] = {}  # unknown machines, and the time when each was first seen
        self._counts: Counter[str] = Counter()  # the number of logs that a machine's message made known first
        self.logs: dict[LogKey, TeamLog] = {}
        self._unread: set[LogKey] = set()  # logs of which the stream has more than was read
        self.turn = trio.Lock()

    def load(self) -> None:
        self._cursor = read(self._path, _Cursor, "how far the sessions of a team were read") or _Cursor()

    async def look(self) -> bool:
        """Returns True if this is not the stream that was read before: then all is read again."""
        created, last = await self._stream.look()
        if created == self._cursor.created and last >= self._cursor.sequence:
            return False
        if self._cursor.created:
            log.warning("the stream of the team's sessions was lost; each machine stores its own again")
        async with self.turn:
            self._cursor = _Cursor(created)
            self.logs.clear()
            self._unread.clear()
            self._counts.clear()
        return True

    async def catch_up(self) -> int:
        """Read some new messages. Returns the number of the last, or 0 if there are none."""
        async with self.turn:
            deliveries = await self._stream.get("ctx.log.>", self._cursor.sequence + 1)
            for delivery in deliveries:
                await self._take_in(delivery)
        return sequence_of(deliveries[-1]) if deliveries else 0

    async def note(self, sequence: int) -> None:
        """Note that all messages up to this one are on the disk of this machine."""
        self._cursor.sequence = max(self._cursor.sequence, sequence)
        await trio.to_thread.run_sync(written, self._path, self._cursor)

    async def known(self, key: LogKey) -> TeamLog:
        async with self.turn:
            await self.read(key)
            return self.logs[key]

    async def again(self, key: LogKey) -> None:
        """Read a session again from its beginning, as the log here lacks a part."""
        async with self.turn:
            try:
                await self.read_anew(key)
            except Fault as fault:
                log.warning("a session cannot be read again: %s", fault.message)

    # -- for callers that hold the turn

    async def read_anew(self, key: LogKey) -> None:
        self.logs[key] = TeamLog(key)
        await self.read(key)

    async def read(self, key: LogKey) -> None:
        """Read all messages of the stream about a session after the known ones."""
        team_log = self.logs.setdefault(key, TeamLog(key))
        self._unread.add(key)
        while deliveries := await self._stream.get(key.filter, team_log.sequence + 1):
            for delivery in deliveries:
                try:
                    self._judge(delivery)
                except NotMet:
                    raise
                except Fault as fault:
                    _log_ignored(delivery, fault)
        self._unread.discard(key)

    async def _take_in(self, delivery: Delivery) -> None:
        """Take in one message of the stream. Raises a Fault if the rest of its log does not come."""
        try:
            machine, key = LogKey.of(delivery.subject)
            if key in self.logs and key not in self._unread:
                self._judge(delivery)
                return
            if key not in self.logs:
                if len(self.logs) >= MAX_LOGS or self._counts[machine] >= MAX_OF_ONE:
                    raise Fault("EAGAIN", f"the limit is {MAX_LOGS} sessions, {MAX_OF_ONE} of a machine")
                self._counts[machine] += 1
        except NotMet:
            raise
        except Fault as fault:
            _log_ignored(delivery, fault)
            return
        await self.read(key)

    def _judge(self, delivery: Delivery) -> None:
        machine, key = LogKey.of(delivery.subject)
        team_log, sequence = self.logs[key], sequence_of(delivery)
        if sequence <= team_log.sequence:
            return
        self._meet(machine)
        team_log.sequence = sequence
        piece = piece_of(keys.opened(self._key_of(machine), delivery.subject, delivery.data))
        team_log.take(machine, piece, self._key_of, keys.stamp_of(delivery.data))
        self._counted(team_log, machine, piece)

    def _meet(self, machine: str) -> None:
        """Raises NotMet for a machine whose token may still come, as its messages must not be ignored."""
        try:
            self._key_of(machine)
        except Fault as fault:
            now = trio.current_time()
            if now - self._strangers.setdefault(machine, now) < MEET_SECONDS:
                raise NotMet(fault.code, fault.message) from None
        else:
            self._strangers.pop(machine, None)  # a machine that is gone for a while is waited for again


def _log_ignored(delivery: Delivery, fault: Fault) -> None:
    if fault.code != "ESTALE":  # one of our own pieces, which counted when it was stored
        log.info("a message about a session, %s, is ignored: %s", delivery.subject, fault.message)
