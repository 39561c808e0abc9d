"""The sessions in use, the drivers that answer in them, and their followers.

    live = await conversations.open(address)      the session, as its log has it
    conversations.start(live)                     a message was accepted: answer it, and those that wait
    live.append(events)                           to the log; followers are woken when it can be seen

Main path: connection.py receives a request and changes a `LiveSession`; `_answer` runs the driver for the
message whose turn it is. The driver's frames go to the log, and from there to all followers.

Rules: a session has at most one `LiveSession`, for as long as it is used. Its state is that of the log. When
the log cannot take an event, the `LiveSession` is lost, its followers are told, and the next use reads the
log again.
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

IDLE = 64  # unused sessions that stay in memory, so that a script's next call finds them
IDLE_RUNS = 1000  # the most runs of such a session
REPLAY = 1 << 20  # bytes that a thread reads into a session at a turn
REPLAYS = 4  # long logs that are read at a time, as a thousand clients may come back together
SHORT_LOG = REPLAY // 16  # bytes of a log that needs no thread
STOPPED = "the daemon was stopped during this run; send the message again under another id"

log = logging.getLogger("cortexfs")


class TeamSide(Protocol):
    """The team's functions that conversations use."""

    async def admit(self, address: Address) -> None:
        """Called before a message. Raises a Fault with the reason if the session is not this machine's."""

    async def take(self, address: Address, by_force: bool) -> None:
        """Move the session to this machine."""


class Conversations:
    """All sessions in use.

    Its attributes are the parts that the daemon has passed, and the sessions that are live, idle, opening or
    at work.
    """

    def __init__(
        self,
        sessions: Sessions,
        runs: Runs,
        driver: Callable[[ObjectKey], Driver],
        approval_secs: float = APPROVAL_SECS,
        agent_of: Callable[[Address], ObjectKey] = lambda address: (address.class_, address.object),
        talked: Callable[[Address, Identity, bool], None] = lambda address, identity, is_new: None,
        over: Callable[[Address], None] = lambda address: None,
    ) -> None:
        self.sessions = sessions
        self._approval_secs = approval_secs
        self.runs = runs
        self._driver = driver
        self._agent_of = agent_of  # returns the agent that has these sessions now
        self._talked = talked  # called before a message is answered; True: the session's first
        self._over = over  # called when the session is gone
        self._live: dict[Address, LiveSession] = {}
        self._idle: OrderedDict[Address, None] = OrderedDict()
        self._opening: dict[Address, trio.Event] = {}
        self._replays = trio.CapacityLimiter(REPLAYS)
        self._nursery: trio.Nursery | None = None
        self._working: set[LiveSession] = set()
        self._rested = trio.lowlevel.ParkingLot()
        self._stopping = False
        self.team: TeamSide | None = None  # None on a machine that is in no team

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

    def close(self) -> None:
        """Take no new messages, and begin none of those that wait."""
        self._stopping = True
        for live in self._live.values():
            live.session.forget_waiting()

    async def stop(self) -> None:
        """End the runs with an error that says why. Their effects stay."""
        for live in list(self._live.values()):
            if active := live.session.active:
                live.stop(active.run, Fault("EHOSTDOWN", STOPPED))
        while self._working:
            await self._rested.park()

    # Sessions.

    async def open(self, address: Address, temp: bool = False) -> LiveSession:
        """Returns the session in memory. A session that does not exist yet is empty."""
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
        # A `done` that is not on disk must not be seen, and must not be written twice.
        await log_.durable(log_.last)
        opening = frames.Start(**{address.class_: address.object})
        live = LiveSession(address, Session(opening, _digest, _now), log_)
        async with self._replays if log_.visible > SHORT_LOG else nullcontext():
            damaged = await _replay(live.session, log_)
        if damaged:
            log.warning("%s: %d lines of the log are not valid", "/".join(address.parts), damaged)
        log_.grown = live.wake
        live.session.leap(log_.newest + 1)
        if not log_.is_copy and (events := live.session.recover()):
            live.append(events)
            with suppress(Fault):  # the session's next user gets this fault
                await log_.durable(
                    events[-1].number
                )  # or a client that asks for present events misses the end of the run
        return live

    def retire(self, live: LiveSession) -> None:
        """Keep a session that is no longer used in memory for a while, if it is small."""
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
        """End a temp session whose connection has left. Nothing of it stays."""
        if active := live.session.active:
            live.stop(active.run, Fault("ECANCELED", ""))
        self._drop(live)
        self.sessions.remove_temp(live.address)
        self._over(live.address)

    def log_lost(self, address: Address) -> None:
        """Called when a log has lost events that it was to show."""
        if (live := self._live.get(address)) and (fault := live.log.fault):
            self.lose(live, fault)

    def vacate(self, address: Address) -> None:
        """Drop a session from memory. Raises EBUSY if it is used or followed."""
        if live := self._live.get(address):
            if live.is_used:
                raise Fault("EBUSY", "the session is in use; leave it everywhere, and try again")
            self._drop(live)

    def removed(self, address: Address) -> None:
        """End a session whose files were removed."""
        if live := self._live.get(address):
            self.lose(live, Fault("ENOENT", "the session was removed; begin another"))
        self._over(address)

    def lose(self, live: LiveSession, fault: Fault) -> None:
        """Give up a session whose log lacks its events. Followers are told; the next use reads the log."""
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
            live.log.grown = nobody  # the log and the session must not keep each other alive

    def find(
        self, id_: str, predicate: Callable[[LiveSession], bool], first: Follower
    ) -> tuple[LiveSession, str]:
        """Returns the session and the run with this id, or whose send had it. Sessions that the asker follows
        come first, as others may use the same ids; then runs that go on."""
        found = [
            (first not in live.followers, live.session.runs[run].state == "over", live, run)
            for live in self._live.values()
            if (run := live.session.find(id_)) and predicate(live)
        ]
        if not found:
            raise unknown(id_)
        _, _, live, run = min(found, key=lambda each: each[:2])
        if live.log.is_copy:
            raise Fault("EACCES", "another machine has the session; stop runs and answer questions there")
        return live, run

    # Runs.

    async def admit(self, address: Address) -> None:
        """Called before a message. Raises a Fault if another machine has the session."""
        if self.team and "+" in address.session:
            await self.team.admit(address)

    def new_run(self) -> str:
        """Returns the id for a message that is taken now. Raises EHOSTDOWN if none are taken any more."""
        if self._stopping:
            raise Fault("EHOSTDOWN", "the daemon is shutting down; send the message again when it is back")
        return self.runs.new_id()

    async def take(self, sight: ClientView, request: Take) -> None:
        if self.team is None:
            raise Fault("EHOSTDOWN", "this machine is in no team; see: ctx team join --help")
        address = sight.address(SessionKey("private", sight.uid, request.session))
        await self.team.take(address, request.force)

    def live(self, address: Address) -> LiveSession | None:
        return self._live.get(address)

    def start(self, live: LiveSession) -> None:
        """Answer the waiting messages, unless that goes on already."""
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
        """Answer the message whose turn it is, from its driver's first frame to a `done` on disk."""
        asker, run, turn, fault = live.askers[accepted.run], None, None, None
        try:
            address = live.address
            key = self._agent_of(address) if address.class_ == "agent" else asker.object
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
        unfinished = turn.unfinished() if turn and fault else []
        events = live.session.emit(run, *unfinished) + live.session.finish(run, fault)
        last = next(event for event in events if event.final)
        live.append(events)
        await live.log.durable(last.number)


async def _keep(live: LiveSession) -> None:
    """Have the log of a session at rest keep a checkpoint, if the log is long."""
    log_ = live.log
    if isinstance(log_, FileLog) and log_.is_worth_keeping and live.session.last == log_.last:
        await log_.keep(live.session.values())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def _replay(session: Session, log_: Log) -> int:
    """Replay the whole log into the session. Returns the number of lines that cannot be understood."""
    offset = damaged = 0
    if isinstance(log_, FileLog) and 0 < log_.checkpoint[0] <= log_.visible:
        with suppress(msgspec.MsgspecError):  # of a version that kept other values
            session.restore(log_.checkpoint[1])
            offset = log_.checkpoint[0]
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
