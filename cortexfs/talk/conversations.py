"""The sessions that are in use, what answers in them, and who follows them.

    live = await conversations.open(address)      the session as its log tells it
    conversations.start(live)                     a message was accepted: answer it, and those that wait
    live.append(events)                           to the log; whoever follows is woken when it can be seen

Main path: connection.py hears a request and changes a `LiveSession`; `_answer` runs the driver for the
message whose turn it is; what it says goes to the log, and from the log to every connection that follows.

Rules: a session has one `LiveSession` at most, for as long as it is used. Its state is what the log holds:
when the log cannot take an event, the Live is lost, its followers are told, and the next use reads the log
again.
This file must never know lines or sockets, nor how a log gets to the disk.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Protocol

import msgspec
import trio

from cortexfs.core import frames
from cortexfs.core.errors import Fault, bare
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Key as ObjectKey
from cortexfs.core.talk.requests import SessionKey, Take
from cortexfs.core.talk.session import AcceptedMessage, Session, unknown
from cortexfs.models.ask.driver import Driver
from cortexfs.pool.run_table import SOCKET, Runs
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.layout import Address
from cortexfs.sessions.log import Log, nobody
from cortexfs.sessions.memory_log import MemoryLog
from cortexfs.sessions.store import Sessions
from cortexfs.talk.session import APPROVAL_SECS, ClientView, Follower, LiveSession, SessionTurn

IDLE = 64  # sessions that stay in memory when nobody uses them, so that a script's next call finds them
IDLE_RUNS = 1000  # and the largest of them
REPLAY = 1 << 20  # bytes that a thread folds at a turn
REPLAYS = 4  # long logs that are read at a time: a thousand clients may come back at once
SHORT_LOG = REPLAY // 16  # that is folded at once
STOPPED = "the daemon was stopped during this run; send the message again under another id"

log = logging.getLogger("cortexfs")


class TeamSide(Protocol):
    """The team, as far as conversations know it."""

    async def admit(self, address: Address) -> None:
        """Before a message: raises the Fault that says why this machine has not that session."""

    async def take(self, address: Address, by_force: bool) -> None:
        """Have the session be this machine's from now on."""


class Conversations:
    """All of them.

    Its attributes are what the daemon has joined to it, and the sessions that are live, idle, opening or at
    work.
    """

    def __init__(
        self,
        sessions: Sessions,
        runs: Runs,
        driver: Callable[[ObjectKey], Driver],
        approval_secs: float = APPROVAL_SECS,
        meant: Callable[[Address], ObjectKey] = lambda address: (address.class_, address.object),
        talked: Callable[[Address, Identity, bool], None] = lambda address, who, is_new: None,
        over: Callable[[Address], None] = lambda address: None,
    ) -> None:
        self.sessions = sessions
        self._approval_secs = approval_secs
        self.runs = runs
        self._driver = driver
        self._meant = meant  # the agent whose sessions these are now
        self._talked = talked  # a message is answered, perhaps the session's first
        self._over = over  # the session is gone
        self._live: dict[Address, LiveSession] = {}
        self._idle: OrderedDict[Address, None] = OrderedDict()
        self._opening: dict[Address, trio.Event] = {}
        self._replays = trio.CapacityLimiter(REPLAYS)
        self._nursery: trio.Nursery | None = None
        self._working: set[LiveSession] = set()
        self._rested = trio.lowlevel.ParkingLot()
        self._stopping = False
        self.team: TeamSide | None = None  # of a machine that is in a team

    def __len__(self) -> int:
        return len(self._live)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled. Sessions that a crash left in mid-run are ended first."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._recover)
            task_status.started()
            await trio.sleep_forever()

    async def _recover(self) -> None:
        for address in self.sessions.unclean:
            try:
                self.retire(await self.open(address))
            except Fault as fault:
                log.warning("%s is not recovered: %s", "/".join(address.parts), fault.message)

    async def stop(self) -> None:
        """No new messages; runs end with an error that says why. What they did stays."""
        self._stopping = True
        for live in list(self._live.values()):
            if active := live.session.active:
                live.stop(active.run, Fault("EHOSTDOWN", STOPPED))
        while self._working:
            await self._rested.park()

    # Sessions.

    async def open(self, address: Address, temp: bool = False) -> LiveSession:
        """The session in memory; one that does not exist yet is empty."""
        while (opening := self._opening.get(address)) is not None:
            await opening.wait()
        if (live := self._live.get(address)) and (fault := live.fault or live.log.fault):
            self.lose(live, fault)  # the disk may have room by now
        if live := self._live.get(address):
            self._idle.pop(address, None)
            return live
        self._opening[address] = trio.Event()
        try:
            live = await self._opened(address, temp)
            self._live[address] = live
            return live
        finally:
            self._opening.pop(address).set()

    async def _opened(self, address: Address, temp: bool) -> LiveSession:
        log_ = self.sessions.temp(address) if temp else await self.sessions.open(address)
        log_.reset()
        # A `done` that is not on disk is not to be seen, and yet not to be doubled.
        await log_.durable(log_.last)
        opening = frames.Start(**{address.class_: address.object})
        live = LiveSession(address, Session(opening, _digest, _now), log_)
        async with self._replays if log_.visible > SHORT_LOG else nullcontext():
            damaged = await _replay(live.session, log_)
        if damaged:
            log.warning("%s: %d events cannot be understood", "/".join(address.parts), damaged)
        log_.grown = live.wake
        live.session.leap(log_.given + 1)
        if not log_.is_copy and (events := live.session.recover()):
            live.append(events)
            with suppress(Fault):  # which whoever uses it next is told
                await log_.durable(
                    events[-1].number
                )  # or who asks for what there is misses the end of the run
        return live

    def retire(self, live: LiveSession) -> None:
        """Nobody uses it: keep it for a while, if it is small."""
        if live.is_used or self._live.get(live.address) is not live:
            return
        live.let_go()
        self._idle[live.address] = None
        self._idle.move_to_end(live.address)
        large = len(live.session.runs) > IDLE_RUNS
        while self._idle and (len(self._idle) > IDLE or large):
            address, _ = self._idle.popitem(last=large)
            self._drop(self._live[address])
            large = False

    def end_temp(self, live: LiveSession) -> None:
        """Its connection has left: it ends, and nothing of it stays."""
        if active := live.session.active:
            live.stop(active.run, Fault("ECANCELED", ""))
        self._drop(live)
        self.sessions.remove_temp(live.address)
        self._over(live.address)

    def log_lost(self, address: Address) -> None:
        """A log has lost what was to be seen in it."""
        if (live := self._live.get(address)) and (fault := live.log.fault):
            self.lose(live, fault)

    def vacate(self, address: Address) -> None:
        """Put a session away; EBUSY where somebody talks in it, or follows it."""
        if live := self._live.get(address):
            if live.is_used:
                raise Fault("EBUSY", "the session is in use; leave it everywhere, and try again")
            self._drop(live)

    def removed(self, address: Address) -> None:
        """Its files are gone, and so is the session."""
        if live := self._live.get(address):
            self.lose(live, Fault("ENOENT", "the session was removed; begin another"))
        self._over(address)

    def lose(self, live: LiveSession, fault: Fault) -> None:
        """Its log does not hold what it should: followers are told, and the next use reads the log."""
        self._drop(live)
        live.is_lost = True
        if active := live.session.active:
            live.stop(active.run, fault)
        for asker in live.askers.values():
            asker.over()
        live.askers.clear()
        for follower in list(live.followers):
            follower.lost(live, fault)

    def _drop(self, live: LiveSession) -> None:
        live.let_go()
        if self._live.get(live.address) is live:
            del self._live[live.address]
            self._idle.pop(live.address, None)
            live.log.grown = nobody  # the log must not keep it alive, nor it the log

    def find(
        self, id_: str, wanted: Callable[[LiveSession], bool], first: Follower
    ) -> tuple[LiveSession, str]:
        """Where the run of that id is, or that of the send of that id. What the asker follows comes first, as
        others may name their messages as he does; then what goes on."""
        found = [
            (first not in live.followers, live.session.runs[run].state == "over", live, run)
            for live in self._live.values()
            if (run := live.session.find(id_)) and wanted(live)
        ]
        if not found:
            raise unknown(id_)
        _, _, live, run = min(found, key=lambda each: each[:2])
        if live.log.is_copy:
            raise Fault("EACCES", "another machine has the session, and alone stops its runs and is answered")
        return live, run

    # Runs.

    async def admit(self, address: Address) -> None:
        """Before a message: raises a Fault where none are taken, or another machine has the session."""
        if self._stopping:
            raise Fault("EHOSTDOWN", "the daemon is shutting down and takes no messages")
        if self.team and "+" in address.session:
            await self.team.admit(address)

    async def take(self, sight: ClientView, request: Take) -> None:
        if self.team is None:
            raise Fault("EHOSTDOWN", "this machine is in no team; see: ctx team join --help")
        address = sight.address(SessionKey("private", sight.uid, request.session))
        await self.team.take(address, request.force)

    def live(self, address: Address) -> LiveSession | None:
        return self._live.get(address)

    def start(self, live: LiveSession) -> None:
        """Answer what was sent, unless that goes on already."""
        if not live.working and live.session.active:
            assert self._nursery
            live.working = True
            self._working.add(live)
            self._nursery.start_soon(self._work, live)

    async def _work(self, live: LiveSession) -> None:
        try:
            while (accepted := live.session.active) and not live.is_lost:
                await self._answer(live, accepted)
                if not live.session.active:
                    await _keep(live)
        finally:
            live.working = False
            self._working.discard(live)
            self._rested.unpark_all()
            self.retire(live)

    async def _answer(self, live: LiveSession, accepted: AcceptedMessage) -> None:
        """The message whose turn it is, from its driver's first word to a `done` that is on disk."""
        asker, run, turn, fault = live.askers[accepted.run], None, None, None
        try:
            address = live.address
            key = self._meant(address) if address.class_ == "agent" else asker.object
            run = self.runs.open(*key, asker.identity.uid, SOCKET, accepted.run)
            driver = self._driver(key)
            turn = SessionTurn(live, accepted, asker, run, self._approval_secs)
            self._talked(address, asker.identity, next(iter(live.session.runs)) == accepted.run)
            fault = await live.drive(accepted.run, driver, turn)
        except Fault as error:
            fault = bare(error)
        try:
            if not live.is_lost:
                await self._finish(live, accepted.run, fault, turn)
        except Fault as error:
            self.lose(live, bare(error))
            fault = fault or error
        finally:
            if waiting := live.askers.pop(accepted.run, None):
                waiting.over()
            if run:
                self.runs.close(run, fault)

    async def _finish(
        self, live: LiveSession, run: str, fault: Fault | None, turn: SessionTurn | None
    ) -> None:
        if why := live.fault or live.log.fault:
            raise why
        unfinished = turn.unfinished() if turn and fault and fault.code != "ECANCELED" else []
        events = live.session.emit(run, *unfinished) + live.session.finish(run, fault)
        last = next(event for event in events if event.final)
        live.append(events)
        await live.log.durable(last.number)


async def _keep(live: LiveSession) -> None:
    """At rest: have the log keep what is known of it, if it is long."""
    log_ = live.log
    if isinstance(log_, FileLog) and log_.is_worth_keeping and live.session.last == log_.last:
        await log_.keep(live.session.kept())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def _replay(session: Session, log_: Log) -> int:
    """Fold the whole log into the session; how many of its lines could not be understood."""
    offset = damaged = 0
    if isinstance(log_, FileLog) and 0 < log_.kept[0] <= log_.visible:
        with suppress(msgspec.MsgspecError):  # of a version that kept something else
            session.restore(log_.kept[1])
            offset = log_.kept[0]
    while data := await log_.lines(offset, REPLAY):
        if isinstance(log_, MemoryLog) or len(data) <= SHORT_LOG:
            damaged += _fold(session, data)
        else:
            damaged += await trio.to_thread.run_sync(_fold, session, data)
        offset += len(data)
    return damaged


def _fold(session: Session, data: bytes) -> int:
    damaged = 0
    for line in data.splitlines(keepends=True):
        try:
            session.replay(line)
        except Fault:
            damaged += 1
    return damaged
