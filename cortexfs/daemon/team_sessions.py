"""The daemon's side of its team's sessions: NAME+MACHINE is a session that MACHINE began.

Main path: a message for such a session is admitted if this machine has the session. Its log then counts as on
disk only when the team's stream has it, too. Other machines' logs come from the link and are appended to the
copies here, which are read as any session is.

Rules: the log here is the first copy. If the stream differs from it, another machine has taken the session:
the run here ends, and lines that only the log here had are kept in a file beside it. While the stream is
away, no message is admitted, and a current run ends after AWAY_SECONDS.
This file must never know how the stream is kept.
"""

from __future__ import annotations

import itertools
import logging
import socket
from contextlib import suppress
from functools import partial

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions import layout
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.store import Sessions
from cortexfs.talk.conversations import Conversations
from cortexfs.team.places import TeamPlaces
from cortexfs.team.session_messages import (
    OWNER,
    TO_DAEMON,
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
    SessionOpening,
    StreamState,
    TakeLog,
    ToDaemon,
    origin_of,
)

AWAY_SECONDS = 30.0

log = logging.getLogger("cortexfs")


class TeamSessions:
    """The team's sessions. The attributes hold the current link, and the logs and calls that wait for it."""

    def __init__(self, places: TeamPlaces, sessions: Sessions, conversations: Conversations) -> None:
        self.places = places
        self._machine = places.read_member().machine
        self._sessions = sessions
        self._conversations = conversations
        self._channel: SessionChannel | None = None
        self._problem = "the link to the team is being started"
        self._own: dict[Address, FileLog] = {}  # logs of this machine that the stream lacks a part of
        self._local: set[Address] = set()
        self._dirty: list[tuple[FileLog, int]] = []  # copies with new events, and the last event of each
        self._held: dict[Address, FileLog] = {}  # logs that get parts: else each part would reread the log
        self._numbers = itertools.count(1)
        self._part = 0  # the number of the last part that was appended
        self._takes: dict[int, tuple[trio.Event, list[Fault]]] = {}
        self._nursery: trio.Nursery | None = None

    def _is_meant(self, address: Address) -> bool:
        return _is_of_team(address) and self.places.is_joined

    # -- called by conversations

    def judge(self, log_: FileLog) -> None:
        """Set how a log is kept, after it was loaded or its owner has changed."""
        if not self._is_meant(log_.address):
            return
        machine = log_.facts.machine
        log_.mirror, log_.is_copy = None, False
        if machine == self._machine:
            log_.mirror = partial(self._more, log_)
            self._local.add(log_.address)
            log_.mirror()
            return
        self._local.discard(log_.address)
        if machine is not None:
            log_.become_copy()

    async def admit(self, address: Address) -> None:
        if not self._is_meant(address):
            return
        machine = (await self._sessions.open(address)).facts.machine
        if machine == self._machine:
            self._check_stream()
        elif machine:
            words = f"ctx session take {address.class_}/{address.object} {address.session}"
            raise Fault("EACCES", f"{machine} has the session; to move it here: {words}")
        elif origin_of(address.session) == self._machine:
            await self.take(address, False)
        else:
            machine = origin_of(address.session)
            raise Fault("ENOENT", f"there is no such session of the team; only {machine} can begin it")

    def _check_stream(self) -> SessionChannel:
        if self._channel is None or self._problem:
            raise Fault("EHOSTDOWN", f"the team's sessions can only be read now: {self._problem}")
        return self._channel

    async def take(self, address: Address, by_force: bool) -> None:
        """Take the session over to this machine. If this returns, the session is this machine's."""
        if not _is_of_team(address):
            raise Fault("EINVAL", "only a session of the team, NAME+MACHINE, can be taken")
        channel, number = self._check_stream(), next(self._numbers)
        over, faults = trio.Event(), list[Fault]()
        self._takes[number] = over, faults
        try:
            channel.tell(TakeLog(number, _place(address), by_force))
            await over.wait()
        finally:
            del self._takes[number]
        if faults:
            raise faults[0]
        if (await self._sessions.open(address)).facts.machine != self._machine:
            raise Fault("EAGAIN", "another machine has taken the session since; try again")

    def removed(self, address: Address) -> None:
        """Note that the session's files are gone. If it was this machine's, it ends for the team."""
        self._own.pop(address, None)
        if address in self._local and self._channel:
            self._local.discard(address)
            self._channel.tell(LogRemoved(_place(address)))

    # -- this machine's own sessions

    def _more(self, log_: FileLog) -> None:
        self._own[log_.address] = log_
        if self._channel:
            self._channel.tell(LocalLog(_place(log_.address), str(log_.path), log_.here, self._part))

    async def _tell_all(self) -> None:
        """Send the link all logs of this machine: the stream is back, or new, and may lack parts of any."""
        for address in await trio.to_thread.run_sync(self._found):
            with suppress(Fault):
                self.judge(await self._sessions.open(address))
        for log_ in list(self._own.values()):
            self._more(log_)

    def _found(self) -> list[Address]:
        found = []
        for space in layout.spaces(self._sessions.root):
            for class_, object_ in layout.objects(self._sessions.root, space):
                folder = self._sessions.root.joinpath(*layout.object_parts(space, class_, object_))
                for name in filter(origin_of, layout.session_names(folder)):
                    with suppress(Fault, OSError, msgspec.MsgspecError):
                        address = Address(space, class_, object_, name)
                        text = (folder / name / "meta.json").read_bytes()
                        if msgspec.json.decode(text, type=layout.Meta).machine == self._machine:
                            found.append(address)
        return found

    async def give_up(self, away: float = AWAY_SECONDS) -> None:
        """Runs for ever, also when the link restarts. Ends the runs that waited too long for the stream."""
        since: float | None = None
        while True:
            await trio.sleep(1.0)
            now = trio.current_time()
            since = (now if since is None else since) if self._problem else None
            if since is not None and now - since >= away:
                fault = Fault("EHOSTDOWN", f"the team's server did not store the message: {self._problem}")
                for address, log_ in list(self._own.items()):
                    if log_.synced < log_.size and (live := self._conversations.live(address)):
                        self._conversations.lose(live, fault)
                        log_.give_up(fault)

    # -- the link

    async def serve(self, control: socket.socket) -> None:
        """Serve the link from its start to its end."""
        self._machine = self.places.read_member().machine
        ours, theirs = socket.socketpair()
        with theirs:
            data = msgspec.msgpack.encode(SessionOpening())
            try:
                socket.send_fds(control, [data], [theirs.fileno()])
            except OSError:  # the link has ended already
                ours.close()
                return
        channel = self._channel = SessionChannel(ours, TO_DAEMON)
        self._part = 0
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(channel.send)
                try:
                    while (message := await channel.receive()) is not None:
                        await self._hear(message, channel)
                except Fault as fault:
                    log.error("a message of the team's link about sessions failed: %s", fault.message)
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = self._channel = None
            self._problem = "the link to the team has ended; it is started again"
            for over, faults in self._takes.values():
                faults.append(Fault("EHOSTDOWN", self._problem))
                over.set()
            channel.close()

    async def _hear(self, item: ToDaemon, channel: SessionChannel) -> None:
        match item:
            case LogPart():
                try:
                    await self._take_part(item, channel)
                except Fault as fault:
                    log.warning("the team's session %s is not stored: %s", item.place.session, fault.message)
                self._part = item.number
                if own := self._own.get(_address(item.place)):
                    self._more(own)
            case PiecesMark(number=number):
                dirty, self._dirty = self._dirty, []
                self._held.clear()
                for log_, last in dirty:
                    with suppress(Fault):
                        await log_.durable(last)
                channel.tell(KeptHere(number))
            case LogStored(place=place, size=size):
                if own := self._own.get(_address(place)):
                    own.stored(size)
                    if own.here <= size and not own.pending:
                        del self._own[own.address]
            case LogTaken(number=number, code=code, message=message):
                if number in self._takes:
                    over, faults = self._takes[number]
                    faults += [Fault(code, message)] if code else []
                    over.set()
            case StreamState(problem=problem):
                self._problem = problem
                if not problem and self._nursery:
                    self._nursery.start_soon(self._tell_all)

    async def _take_part(self, part: LogPart, channel: SessionChannel) -> None:
        address = _address(part.place)
        if not part.data:
            self._own.pop(address, None)
            self._local.discard(address)
            await self._sessions.remove(address)
            return
        log_ = self._held[address] = await self._sessions.open(address)
        if log_.mirror is None and part.start == log_.end_place:
            await self._append(log_, part.data)
            return
        if log_.mirror is None:
            await log_.durable(log_.newest)
        if part.start > log_.size:
            channel.tell(MissingPieces(part.place))
            return
        size, newest = min(part.start + len(part.data), log_.size) - part.start, log_.newest
        here = await trio.to_thread.run_sync(log_.read, part.start, size) if size else b""
        same = size if here == part.data[:size] else _same_lines(here, part.data)
        if same < size or (log_.mirror and part.data[same:]):
            log_ = await self._cut(log_, part.start + same)
        if rest := part.data[same:]:
            await self._append(log_, rest)
        if log_.mirror is None and log_.facts.machine == self._machine:
            # This machine's session, whose log here had lost its end: new events go to the stream.
            await log_.durable(log_.newest)
            log_.newest = max(log_.newest, newest)  # clients here may have seen events that were lost
            self.judge(log_)

    async def _cut(self, log_: FileLog, end: int) -> FileLog:
        """Cut the log at the byte from which the stream differs, and end the run here."""
        fault = Fault("EHOSTDOWN", "another machine of the team has taken the session")
        address = log_.address
        log_.mirror = None
        self._own.pop(address, None)
        if live := self._conversations.live(address):
            self._conversations.lose(live, fault)
        log_.give_up(fault)
        await self._sessions.cut(address, end)
        log_ = self._held[address] = await self._sessions.open(address)
        log_.become_copy()  # even if the rest of the log names this machine as its owner
        self._own.pop(address, None)
        return log_

    async def _append(self, log_: FileLog, data: bytes) -> None:
        """Append lines to a copy, and pass them to its readers here."""
        log_.check_share()
        lines = data.splitlines(keepends=True)
        try:
            log_.append(lines)
        except ValueError as error:
            raise Fault("EPROTO", f"the team's events do not continue the log here: {error}") from None
        live = self._conversations.live(log_.address)
        for line in lines if live else ():
            with suppress(Fault):
                live.session.replay(line)  # type: ignore[union-attr]
        self._dirty.append((log_, log_.newest))
        if any(line.startswith(OWNER) for line in lines):
            await log_.durable(log_.newest)
            self.judge(log_)
            if not log_.is_copy and self._nursery:
                self._nursery.start_soon(self._recover, log_.address)

    async def _recover(self, address: Address) -> None:
        """End the runs of the other machine, as the session is this machine's now."""
        if live := self._conversations.live(address):
            self._conversations.lose(live, Fault("EHOSTDOWN", "the session has moved to this machine"))
        with suppress(Fault):
            self._conversations.retire(await self._conversations.open(address))


def _is_of_team(address: Address) -> bool:
    return bool(origin_of(address.session)) and address.space.folder.startswith("home/")


def _place(address: Address) -> LogPlace:
    return LogPlace(address.space.uid, address.class_, address.object, address.session)


def _address(place: LogPlace) -> Address:
    return Address(Space.private(place.uid), place.class_, place.object, place.session)


def _same_lines(here: bytes, other: bytes) -> int:
    """Returns up to which byte both have the same lines."""
    pairs = zip(here.splitlines(keepends=True), other.splitlines(keepends=True), strict=False)
    return sum(len(line) for line, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
