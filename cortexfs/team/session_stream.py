"""The sessions of the team, from the link's side: the messages to the daemon about them, and those from it.

Main path: valid pieces of the stream go to the daemon, for users of this machine. `_store` puts the logs on
the daemon's disk into the stream, a piece at a time, behind the last known message.

Rules: a piece is written with the number of the last message about its session. The server refuses it if
there is a newer message, which is then read first. The length of a log that the daemon reports counts only
when the daemon has taken in every part of that log that it was sent.
This file must never know the purpose of a session.
"""

from __future__ import annotations

import logging
import math
import os
import pwd
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from cortexfs.core.errors import Fault
from cortexfs.team import subjects
from cortexfs.team.mapping import Mapping, user_name
from cortexfs.team.nats_client import ANSWER_SECONDS, Client
from cortexfs.team.session_log import REMOVED, LogKey, StreamPiece, TeamLog, is_allowed, owner_line
from cortexfs.team.session_messages import (
    PIECE,
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
    owner_of,
)
from cortexfs.team.session_reading import LogStore, TeamLogs

RETRY_SECONDS = 0.25
LOOK_SECONDS = 2.0  # after which the stream is checked, even without news of more
LEAP = 1_000_000  # ids that a new owner skips: the old owner may have shown some, and lost them

log = logging.getLogger("cortexfs")


class SessionStream:
    """Its attributes are its requests to the other parts of the link, and the progress of the daemon."""

    def __init__(
        self, client: Client, mapping: Mapping, cursor: Path,
        key_of: Callable[[str], bytes], is_live: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._stream = LogStore(client)
        self._team = TeamLogs(self._stream, cursor, key_of, self._counted)
        self._machine = client.name
        self._key = client.key
        self._key_of = key_of
        self._mapping = mapping
        self._is_live = is_live
        self._local: dict[LogKey, LocalLog] = {}
        self._storing: set[LogKey] = set()
        self._removing: dict[LogKey, trio.Event] = {}
        self._unread: str | None = "it was not read yet"
        self._unkept: dict[LogKey, str] = {}  # the reason why the server does not keep a piece
        self._part = 0  # the last part that was sent to the daemon
        self._parts: dict[LogKey, int] = {}  # the last part of a session, unless the daemon has taken it in
        self._marks: dict[int, trio.Event] = {}  # marks that the daemon has not reached yet
        self._mark = 0
        self._news = trio.Event()
        self.met = trio.Event()  # set once the machines of the team are known
        client.subscribe(subjects.SAID, lambda delivery: self._news.set())

    async def serve(self, channel: SessionChannel) -> None:
        """Serve as long as the daemon has sessions of the team."""
        await self.met.wait()
        self._team.load()
        self._channel = channel
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(channel.send)
            self._nursery.start_soon(self._follow)
            while (message := await channel.receive()) is not None:
                try:
                    self._hear(message)
                except Fault as fault:
                    log.info("a session of the team is ignored: %s", fault.message)
            self._nursery.cancel_scope.cancel()

    def _hear(self, message: FromDaemon) -> None:
        match message:
            case LocalLog(place=place):
                key = self._key_at(place) or _key_in(message)
                if key and message.after >= self._parts.get(key, 0):
                    self._local[key] = message
                    if key not in self._storing:
                        self._storing.add(key)
                        self._nursery.start_soon(self._store, key)
            case TakeLog():
                self._nursery.start_soon(self._take, message)
            case KeptHere(mark=mark):
                if mark in self._marks:
                    self._marks.pop(mark).set()
            case MissingPieces(place=place):
                if key := self._key_at(place):
                    self._nursery.start_soon(self._team.again, key)
            case LogRemoved(place=place):
                key = self._key_at(place)
                if key and key not in self._removing:
                    self._local.pop(key, None)
                    self._removing[key] = trio.Event()
                    self._nursery.start_soon(self._remove, key)

    # -- users and sessions

    def _key_at(self, place: LogPlace) -> LogKey | None:
        rest = place.class_, place.object, place.session
        if origin_of(place.session) == self._machine:
            return LogKey(user_name(place.uid), *rest)
        for key, local in self._local.items():
            if local.place == place:
                return key
        for key, team_log in self._team.logs.items():
            if key[1:] == rest and (found := self._place(team_log)) and found.uid == place.uid:
                return key
        return None

    def _place(self, team_log: TeamLog) -> LogPlace | None:
        """Returns its place on this machine, or None if it belongs to no user here."""
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
        """Returns the map as patterns: names that are this user here, and, with `!`, names that are not."""
        return [pattern if here == user else f"!{pattern}" for pattern, here in self._mapping.rows]

    # -- reading

    async def _follow(self) -> None:
        last_look = -math.inf
        while True:
            self._news = trio.Event()
            try:
                if trio.current_time() - last_look >= LOOK_SECONDS:  # however many messages come meanwhile
                    if await self._team.look():
                        self._channel.tell(StreamState("the stream is read"))
                        self._tell_state()
                    last_look = trio.current_time()
                while found := await self._team.catch_up():
                    await self._wait_kept()
                    await self._team.note(found)
                if self._unread is not None:
                    self._unread = None
                    self._tell_state()
            except Fault as fault:
                if self._unread != fault.message:
                    self._unread = fault.message
                    self._tell_state()
                last_look = -math.inf
                await trio.sleep(RETRY_SECONDS)
                continue
            with trio.move_on_after(LOOK_SECONDS):
                await self._news.wait()

    def _tell_state(self) -> None:
        self._channel.tell(StreamState(self._unread or next(iter(self._unkept.values()), "")))

    async def _wait_kept(self) -> None:
        self._mark += 1
        part, reached = self._part, trio.Event()
        self._marks[self._mark] = reached
        self._channel.tell(PiecesMark(self._mark))
        await reached.wait()
        self._parts = {key: last for key, last in self._parts.items() if last > part}

    def _counted(self, team_log: TeamLog, machine: str, piece: StreamPiece) -> None:
        """Take in a valid piece of the stream."""
        place = self._place(team_log)
        local = self._local.get(team_log.key)
        if place and local and machine == team_log.machine == self._machine and local.size >= team_log.size:
            self._channel.tell(LogStored(place, team_log.size))
            return
        self._local.pop(team_log.key, None)  # the daemon's log may change now, and then it is reported anew
        if place:
            self._part += 1
            self._parts[team_log.key] = self._part
            self._channel.tell(LogPart(place, self._part, max(piece.start, 0), piece.data))

    # -- writing

    async def _store(self, key: LogKey) -> None:
        """Store the log on the daemon's disk, until all of it is stored."""
        try:
            while local := self._local.get(key):
                try:
                    if not await self._store_piece(key, local):
                        return
                except (Fault, OSError) as fault:
                    log.info("a session waits to be stored: %s", fault)
                    if isinstance(fault, Fault) and fault.code == "ENOSPC" and key not in self._unkept:
                        self._unkept[key] = fault.message
                        self._tell_state()
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._storing.discard(key)
            self._keeps(key)

    def _keeps(self, key: LogKey) -> None:
        if self._unkept.pop(key, None):
            self._tell_state()

    async def _store_piece(self, key: LogKey, local: LocalLog) -> bool:
        """Store one piece. Returns False if there is no more to store."""
        team_log = self._team.logs.get(key) or await self._team.known(key)
        async with self._team.turn:
            if self._local.get(key) is not local or self._team.logs.get(key) is not team_log:
                return True
            if team_log.size and team_log.machine != self._machine:
                return False
            if local.size <= team_log.size:
                self._channel.tell(LogStored(local.place, team_log.size))
                return False
            data = _lines_of(local.path, team_log.size, local.size)
            sequence = await self._stream.publish(team_log, team_log.size, data)
            self._keeps(key)
            if sequence and self._advance(team_log, data, sequence):
                if self._local.get(key):
                    self._channel.tell(LogStored(local.place, team_log.size))
            else:
                await self._team.read(key)
            return True

    def _advance(self, team_log: TeamLog, data: bytes, sequence: int) -> bool:
        """Take in a stored piece of our own: it counts at once, and is skipped when it is read."""
        try:
            now = int(time.time() * 1000) + 1
            team_log.take(self._machine, StreamPiece(team_log.size, data), self._key_of, now)
        except Fault as fault:
            log.warning("a piece of a session is not valid: %s", fault.message)
            return False
        team_log.sequence = sequence
        return True

    async def _take(self, request: TakeLog) -> None:
        try:
            await self._own(request)
            await self._wait_kept()
            self._channel.tell(LogTaken(request.number, "", ""))
        except Fault as fault:
            self._channel.tell(LogTaken(request.number, fault.code, fault.message))

    async def _own(self, request: TakeLog) -> None:
        """Become the owner of a session. A session without pieces begins by that."""
        place, user = request.place, user_name(request.place.uid)
        key = self._key_at(place)
        if key is None:
            raise Fault("ENOENT", f"the team has no session {place.session} that is yours here")
        if key in self._removing:
            with trio.move_on_after(ANSWER_SECONDS):
                await self._removing[key].wait()
            if key in self._removing:
                why = "an earlier session of that name is still being removed from the team; try again"
                raise Fault("EHOSTDOWN", why)
        for _ in range(3):
            team_log = await self._team.known(key)
            async with self._team.turn:
                if team_log.machine == self._machine:
                    if key not in self._local:  # the log here was lost
                        await self._team.read_anew(key)
                    return
                if team_log.machine and self._is_live(team_log.machine) and not request.by_force:
                    why = f"the session is on {team_log.machine}, which is connected; take it with --force"
                    raise Fault("EBUSY", why)
                if team_log.machine and not team_log.may_have(user, self._machine):
                    raise Fault("EACCES", f"the team.map of {key.origin}, where it began, did not allow you")
                is_new = not team_log.size
                may = self._may(key.user) if is_new else team_log.may
                id_ = 1 if is_new else team_log.last_id + LEAP
                line = owner_line(self._key, team_log, self._machine, user, may, id_)
                await self._stream.publish(team_log, team_log.size, line)
                await self._team.read(key)
                if is_new and team_log.machine == self._machine:
                    return  # a taken session may lack a part here, and is read anew
        raise Fault("EAGAIN", "other machines are taking this session now; try again")

    async def _remove(self, key: LogKey) -> None:
        while True:
            try:
                team_log = await self._team.known(key)
                async with self._team.turn:
                    if team_log.machine != self._machine:
                        self._removing.pop(key).set()
                        return
                    await self._stream.publish(team_log, REMOVED, b"")
                    await self._team.read(key)
            except Fault:
                await trio.sleep(RETRY_SECONDS)


def _key_in(local: LocalLog) -> LogKey | None:
    """Returns the session that a log belongs to, from its first line."""
    with suppress(OSError), open(local.path, "rb") as file:
        if owner := owner_of(file.readline(PIECE)):
            return LogKey(owner.user, local.place.class_, local.place.object, local.place.session)
    return None


def _lines_of(path: str, start: int, end: int) -> bytes:
    """Returns whole lines of a log, at least one."""
    with open(path, "rb") as file:
        size, data = PIECE, b""
        while not data:
            found = os.pread(file.fileno(), min(size, end - start), start)
            data = found[: found.rfind(b"\n") + 1]
            if not data and (size > 4 * PIECE or len(found) < size):
                raise Fault("EIO", f"{path} has no whole event at byte {start}")
            size *= 2
    return data
