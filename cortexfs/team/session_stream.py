"""The sessions of the team, from the side of the link: the stream that has them, read and written.

Main path: `_follow` reads what the stream has beyond what is known, has each session's TeamLog judge it, and
tells the daemon of what is new for users here; `_store` puts what the daemon has on its disk into the stream,
a piece at a time, behind the last one that it knows of.

Rules: a piece is written with the number of the last message about its session, and the server refuses it
where there is another by now: then that is read first. What has been read is noted when the daemon has it on
its disk. The stream may be lost: then all is read, and each owner stores its logs again.
This file must never know what a session is about.
"""

from __future__ import annotations

import logging
import math
import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.team import keys, subjects
from cortexfs.team.mapping import Mapping
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import written
from cortexfs.team.session_log import REMOVED, LogKey, StreamPiece, TeamLog, is_allowed, owner_line, piece_of
from cortexfs.team.session_messages import (
    FromDaemon,
    KeptHere,
    LocalLog,
    LogPart,
    LogPlace,
    LogRemoved,
    LogStored,
    LogTaken,
    MissingPieces,
    PiecesMark,
    SessionChannel,
    StreamState,
    TakeLog,
    origin_of,
)
from cortexfs.team.session_store import LogStore, key_in, lines_of, sequence_of

RETRY_SECONDS = 0.25
LOOK_SECONDS = 2.0  # after which the stream is looked at, also where nobody says that there is more
LEAP = 1_000_000  # ids that who takes a session leaves out: some may have been seen there, and lost
MEET_SECONDS = 5.0  # after which a machine that is not in the directory is none
MAX_LOGS = 100_000

log = logging.getLogger("cortexfs")


class _Cursor(msgspec.Struct):
    """How far the stream has been read, and which stream that was."""

    created: str = ""
    sequence: int = 0


class NotMet(Fault):
    """A machine is not known yet, nor is the worth of its word."""


class SessionStream:
    """Its attributes are what it asks of the other parts of the link, and how far the daemon is."""

    def __init__(
        self, client: Client, machine: str, key: keys.Key, mapping: Mapping, cursor: Path,
        key_of: Callable[[str], bytes], is_live: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._stream = LogStore(client, machine, key)
        self._machine = machine
        self._key = key
        self._mapping = mapping
        self._path = cursor
        self._key_of, self._is_live = key_of, is_live
        self._cursor = _Cursor()
        self._logs: dict[LogKey, TeamLog] = {}
        self._local: dict[LogKey, LocalLog] = {}
        self._storing: set[LogKey] = set()
        self._turn = trio.Lock()  # the logs change in one hand
        self._news = trio.Event()
        self.met = trio.Event()  # the machines of the team are known
        self._strangers: dict[str, float] = {}  # machines that are not, and since when
        self._marks: dict[int, trio.Event] = {}  # which the daemon has not reached yet
        self._mark = 0
        client.subscribe(subjects.SAID, lambda delivery: self._news.set())

    async def serve(self, channel: SessionChannel) -> None:
        """For as long as the daemon has sessions of the team."""
        await self.met.wait()
        if self._path.exists():
            self._cursor = msgspec.json.decode(self._path.read_bytes(), type=_Cursor)
        self._channel = channel
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(channel.send)
            self._nursery.start_soon(self._follow)
            while (said := await channel.receive()) is not None:
                try:
                    self._hear(said)
                except Fault as fault:
                    log.info("a session of the team is left: %s", fault.message)
            self._nursery.cancel_scope.cancel()

    def _hear(self, said: FromDaemon) -> None:
        match said:
            case LocalLog(place=place):
                if key := self._key_at(place) or key_in(said):
                    self._local[key] = said
                    if key not in self._storing:
                        self._storing.add(key)
                        self._nursery.start_soon(self._store, key)
            case TakeLog():
                self._nursery.start_soon(self._take, said)
            case KeptHere(mark=mark):
                if mark in self._marks:
                    self._marks.pop(mark).set()
            case MissingPieces(place=place):
                if key := self._key_at(place):
                    self._nursery.start_soon(self._again, key)
            case LogRemoved(place=place):
                if key := self._key_at(place):
                    self._nursery.start_soon(self._remove, key)

    # -- who is who

    def _key_at(self, place: LogPlace) -> LogKey | None:
        rest = place.class_, place.object, place.session
        if origin_of(place.session) == self._machine:
            return LogKey(_name(place.uid), *rest)
        for key, local in self._local.items():
            if local.place == place:
                return key
        for key in self._logs:
            if key[1:] == rest and (found := self._place(self._logs[key])) and found.uid == place.uid:
                return key
        return None

    def _place(self, team_log: TeamLog) -> LogPlace | None:
        """Where it is here; None where it is nobody's here."""
        key = team_log.key
        user = key.user
        if key.origin != self._machine:
            user = self._mapping.user(key.user, key.origin)
            if not user or not is_allowed(team_log.may, user, self._machine):
                return None
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:
            return None
        is_ours = os.geteuid() in (0, uid)
        return LogPlace(uid, key.class_, key.object, key.session) if is_ours else None

    def _may(self, user: str) -> list[str]:
        """The map, as to who is this user here."""
        return [who if here == user else f"!{who}" for who, here in self._mapping.rows]

    # -- reading

    async def _follow(self) -> None:
        problem: str | None = "it was not read yet"
        looked = -math.inf
        while True:
            self._news = trio.Event()
            try:
                if trio.current_time() - looked >= LOOK_SECONDS:  # however much is said meanwhile
                    await self._look()
                    looked = trio.current_time()
                await self._catch_up()
                if problem is not None:
                    problem = None
                    self._channel.tell(StreamState(""))
            except Fault as fault:
                if problem != fault.message:
                    problem = fault.message
                    self._channel.tell(StreamState(problem))
                looked = -math.inf
                await trio.sleep(RETRY_SECONDS)
                continue
            with trio.move_on_after(LOOK_SECONDS):
                await self._news.wait()

    async def _look(self) -> None:
        """Find out whether it is the stream that was read."""
        created, last = await self._stream.look()
        if created != self._cursor.created or last < self._cursor.sequence:
            if self._cursor.created:
                log.warning("the stream of the team's sessions was lost; each owner stores its own again")
            async with self._turn:
                self._cursor = _Cursor(created)
                self._logs.clear()
            self._channel.tell(StreamState("the stream is read"))
            self._channel.tell(StreamState(""))

    async def _catch_up(self) -> None:
        while True:
            async with self._turn:
                found = await self._stream.get("ctx.log.>", self._cursor.sequence + 1)
                for one in found:
                    await self._take_in(one)
            if not found:
                return
            await self._wait_kept()
            self._cursor.sequence = max(self._cursor.sequence, sequence_of(found[-1]))
            await trio.to_thread.run_sync(written, self._path, self._cursor)

    async def _wait_kept(self) -> None:
        self._mark += 1
        reached = self._marks[self._mark] = trio.Event()
        self._channel.tell(PiecesMark(self._mark))
        await reached.wait()

    async def _take_in(self, one: Delivery) -> None:
        """One message of the stream; the turn is ours."""
        try:
            _, key = LogKey.of(one.subject)
            if key not in self._logs:
                if len(self._logs) >= MAX_LOGS:
                    raise Fault("EAGAIN", f"there are {MAX_LOGS} sessions already")
                self._logs[key] = TeamLog(key)
                await self._read(key)
            else:
                self._judge(one)
        except NotMet:
            raise
        except Fault as fault:
            _left(one, fault)

    async def _read(self, key: LogKey) -> None:
        """All that the stream has of a session beyond what is known."""
        known = self._logs.setdefault(key, TeamLog(key))
        while found := await self._stream.get(key.filter, known.sequence + 1):
            for one in found:
                try:
                    self._judge(one)
                except NotMet:
                    raise
                except Fault as fault:
                    _left(one, fault)

    def _judge(self, one: Delivery) -> None:
        machine, key = LogKey.of(one.subject)
        known, sequence = self._logs[key], sequence_of(one)
        if sequence <= known.sequence:
            return
        self._meet(machine)
        known.sequence = sequence
        piece = piece_of(keys.opened(self._key_of(machine), one.subject, one.data, fresh=False))
        place = self._place(known)
        known.take(machine, piece, self._key_of, keys.stamp_of(one.data))
        if piece.start == REMOVED:
            self._local.pop(key, None)
        place = self._place(known) or place
        if place is None:
            return
        local = self._local.get(key)
        if machine == known.machine == self._machine and local and local.size >= known.size:
            self._channel.tell(LogStored(place, known.size))
            return
        if known.machine != self._machine:
            self._local.pop(key, None)
        self._channel.tell(LogPart(place, max(piece.start, 0), piece.data))

    def _meet(self, machine: str) -> None:
        """Raises NotMet about a machine whose token may still come: what it has said is not to be left."""
        try:
            self._key_of(machine)
        except Fault as fault:
            now = trio.current_time()
            if now - self._strangers.setdefault(machine, now) < MEET_SECONDS:
                raise NotMet(fault.code, fault.message) from None
        else:
            self._strangers.pop(machine, None)  # who is gone for a while is waited for again

    async def _again(self, key: LogKey) -> None:
        """The log here lacks something: tell it from its beginning."""
        async with self._turn:
            self._logs[key] = TeamLog(key)
            try:
                await self._read(key)
            except Fault as fault:
                log.warning("a session cannot be read again: %s", fault.message)

    # -- writing

    async def _known(self, key: LogKey) -> TeamLog:
        async with self._turn:
            await self._read(key)
            return self._logs[key]

    async def _store(self, key: LogKey) -> None:
        """Store what the daemon has on its disk, until that is all."""
        try:
            while local := self._local.get(key):
                try:
                    if not await self._store_piece(key, local):
                        return
                except (Fault, OSError) as fault:
                    log.info("a session waits to be stored: %s", fault)
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._storing.discard(key)

    async def _store_piece(self, key: LogKey, local: LocalLog) -> bool:
        known = self._logs.get(key) or await self._known(key)
        async with self._turn:
            if known is not self._logs.get(key):
                return True
            if (known.size and known.machine != self._machine) or local.size <= known.size:
                if local.size <= known.size and known.machine == self._machine:
                    self._channel.tell(LogStored(local.place, known.size))
                return self._local.get(key) is not local
            data = lines_of(local.path, known.size, local.size)
            is_taken = await self._stream.publish(known, known.size, data)
            if is_taken and self._advance(known, data):
                self._channel.tell(LogStored(local.place, known.size))
            else:
                await self._read(key)
            return True

    def _advance(self, known: TeamLog, data: bytes) -> bool:
        """A piece of ours is stored: it counts at once, and is passed over where it is read."""
        try:
            now = int(time.time() * 1000) + 1
            known.take(self._machine, StreamPiece(known.size, data), self._key_of, now)
        except Fault as fault:
            log.warning("a piece of a session does not count: %s", fault.message)
            return False
        return True

    async def _take(self, asked: TakeLog) -> None:
        try:
            await self._own(asked)
            await self._wait_kept()
            self._channel.tell(LogTaken(asked.number, "", ""))
        except Fault as fault:
            self._channel.tell(LogTaken(asked.number, fault.code, fault.message))

    async def _own(self, asked: TakeLog) -> None:
        """Become the owner of a session, or of one that is begun by that."""
        place, by = asked.place, _name(asked.place.uid)
        key = self._key_at(place)
        if key is None:
            raise Fault("ENOENT", f"the team has no session {place.session} that is yours here")
        for _ in range(3):
            known = await self._known(key)
            async with self._turn:
                if known.machine == self._machine:
                    if key not in self._local:  # the log here was lost
                        self._logs[key] = TeamLog(key)
                        await self._read(key)
                    return
                if known.machine and self._is_live(known.machine) and not asked.by_force:
                    why = f"the session is on {known.machine}, which is there; --force takes it all the same"
                    raise Fault("EBUSY", why)
                if known.machine and not known.may_have(by, self._machine):
                    raise Fault("EACCES", f"{key.origin}, where it was begun, has not said that you may")
                may = known.may if known.size else self._may(key.user)
                id_ = known.last_id + LEAP if known.size else 1
                line = owner_line(self._key, known, self._machine, by, may, id_)
                await self._stream.publish(known, known.size, line)
                await self._read(key)
        raise Fault("EAGAIN", "other machines take this session now; try again")

    async def _remove(self, key: LogKey) -> None:
        while True:
            try:
                known = await self._known(key)
                async with self._turn:
                    if known.machine != self._machine:
                        return
                    await self._stream.publish(known, REMOVED, b"")
                    await self._read(key)
            except Fault:
                await trio.sleep(RETRY_SECONDS)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Fault("EACCES", f"the user {uid} has no name here, and so no sessions of the team") from None


def _left(one: Delivery, fault: Fault) -> None:
    if fault.code != "ESTALE":  # a piece of ours, which counted when it was stored
        log.info("a message about a session, %s, is left: %s", one.subject, fault.message)
