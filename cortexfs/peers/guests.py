"""The people who are connected: their shares of connections and memory, and the turns in which they begin.

Main path: `Arrivals.welcome` accepts at one listener, and lets what it accepts wait in its user's queue. At
each turn of the loop `run` begins a few of those that wait, one of each user after the other.

Rules: no user has more than a share of what there is for all, so that one who opens connections without end
locks out only himself. What waits counts as connected, and a user's surplus is closed unread. A connection
that its client has closed is never begun. A listener at which more wait than are accepted at a time pauses,
the longer the more such listeners there are: clients then wait in connect(2), and take no time from others.
Runs and hosts have limits of their own (pool/run_table.py, pool/pool.py).
This file must never know what is said over a connection.
"""

from __future__ import annotations

import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import trio

from cortexfs.core.errors import Fault
from cortexfs.peers import safe_sockets
from cortexfs.peers.caller import peer_uid

SHARE = 4  # one user has at most one part in four of the connections
# Arguments stay in memory for as long as their run: three of the longest that may be (wire.MAX_STRINGS).
MAX_HELD = 64 << 20
MAX_UNREAD = 64  # lines of up to a MiB each that are on their way to connections of a user
SMALL = 64 << 10  # always let in: all connections of a user with so much are no more than MAX_HELD
ACCEPTED = 16  # at a time: 0.2 ms
PAUSE = 0.001  # the least that epoll_wait(2) waits; a daemon that never waits is scheduled behind everybody
BEGUN = 8  # at a turn of the loop, as each may take half a millisecond of the next one
PACE = 256  # so many a second, where that is more: a turn takes 0.25 s in a daemon that streams to a thousand


class Guest:
    """One connection of a user."""

    def __init__(self, uid: int, held: Counter[int]) -> None:
        self.uid = uid
        self.bytes = 0
        self._held = held

    def hold(self, size: int) -> None:
        """Before `size` bytes of him are kept; EAGAIN when he has us keep too much already."""
        if size > SMALL and self._held[self.uid] + size > MAX_HELD:
            held = self._held[self.uid] >> 20
            raise Fault("EAGAIN", f"the runs of uid {self.uid} have {held} MiB of arguments now; try again")
        self._held[self.uid] += size
        self.bytes += size


class Guests:
    """The people who are connected, by uid."""

    def __init__(self, connections: int) -> None:
        self._most = connections
        self._share = max(1, connections // SHARE)
        self._total = 0
        self.crowded: set[socket.socket] = set()  # listeners at which more wait than are accepted at a time
        self._open: Counter[int] = Counter()
        self._held: Counter[int] = Counter()
        self._unread: Counter[int] = Counter()
        self._freed: dict[int, trio.lowlevel.ParkingLot] = {}
        self._turns: WeakValueDictionary[int, trio.Lock] = WeakValueDictionary()

    def turn(self, uid: int) -> trio.Lock:
        """For what costs more than its line: one such thing of a user's goes on at a time."""
        lock = self._turns.get(uid) or trio.Lock()
        self._turns[uid] = lock
        return lock

    def enter(self, uid: int) -> Guest | None:
        """A connection more for this user; None when there are enough of them."""
        if self._open[uid] >= self._share or self._total >= self._most:
            return None
        self._total += 1
        self._open[uid] += 1
        return Guest(uid, self._held)

    def leave(self, guest: Guest) -> None:
        self._total -= 1
        self._open[guest.uid] -= 1
        if not self._open[guest.uid]:
            del self._open[guest.uid]
        self._let_go(guest.uid, guest.bytes)

    def hold(self, uid: int, size: int) -> Callable[[], None]:
        """Before `size` bytes are kept for messages or sessions, whoever is connected then; call what it
        returns when they are not needed any more. EAGAIN when this user has us keep too much already."""
        if self._held[uid] + size > MAX_HELD:
            held = f"the sessions of uid {uid} and their messages hold {MAX_HELD >> 20} MiB of memory"
            raise Fault("EAGAIN", f"{held}; wait for answers, or close connections")
        self._held[uid] += size
        return partial(self._let_go, uid, size)

    async def room(self, uid: int) -> Callable[[], None]:
        """Before a long line is sent to one of his connections; waits while others do not read theirs."""
        while self._unread[uid] >= MAX_UNREAD:
            await self._freed.setdefault(uid, trio.lowlevel.ParkingLot()).park()
        self._unread[uid] += 1
        return partial(self._leave_room, uid)

    def _leave_room(self, uid: int) -> None:
        self._unread[uid] -= 1
        if not self._unread[uid]:
            del self._unread[uid]
        if freed := self._freed.pop(uid, None):
            freed.unpark_all()

    def _let_go(self, uid: int, size: int) -> None:
        self._held[uid] -= size
        if not self._held[uid]:
            del self._held[uid]


# What it returns goes on with that, once all have been begun whose turn it is.
Begin = Callable[[socket.socket, Guest], Callable[[], object]]


class _Arrival(NamedTuple):
    stream: socket.socket
    guests: Guests
    guest: Guest
    begin: Begin

    def close(self) -> None:
        safe_sockets.close(self.stream)
        self.guests.leave(self.guest)


class Arrivals:
    """The connections that wait, by uid, of all listeners together."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Arrival]] = {}  # in the order of their turns
        self._more = trio.Event()

    async def welcome(
        self, listener: socket.socket, guests: Guests, begin: Begin, pause: float = PAUSE
    ) -> None:
        """Accept for ever. Over the limit, connections are closed, which a client sees as its end."""
        try:
            while True:
                await trio.lowlevel.wait_readable(listener)
                self._accept(listener, guests, begin)
                if not self._more.is_set():
                    self._begin(BEGUN)
                if listener in guests.crowded:
                    await trio.sleep(pause * len(guests.crowded))
        finally:
            guests.crowded.discard(listener)

    async def run(self) -> None:
        """Begin what could not be begun when it was accepted, until cancelled."""
        try:
            while True:
                await self._more.wait()
                now = time.perf_counter()
                while self._waiting:
                    await trio.lowlevel.checkpoint()
                    before, now = now, time.perf_counter()
                    self._begin(max(BEGUN, int((now - before) * PACE)))
                self._more = trio.Event()
        finally:
            while self._waiting:
                self._next().close()

    def _accept(self, listener: socket.socket, guests: Guests, begin: Begin) -> None:
        """Let those wait who have connected, as many as are accepted at a time."""
        guests.crowded.add(listener)
        try:
            for _ in range(ACCEPTED):
                self._take(listener.accept()[0], guests, begin)
        except BlockingIOError:
            guests.crowded.discard(listener)
        except OSError:  # no descriptors left, so that it stays crowded until others have ended
            pass

    def _take(self, stream: socket.socket, guests: Guests, begin: Begin) -> None:
        uid = peer_uid(stream)
        guest = guests.enter(uid)
        if guest is None:
            safe_sockets.close(stream)
        else:
            stream.setblocking(False)
            self._waiting.setdefault(uid, deque()).append(_Arrival(stream, guests, guest, begin))

    def _begin(self, most: int) -> None:
        begun = []
        while self._waiting and most:
            most -= 1
            arrival = self._next()
            if _is_over(arrival.stream):
                arrival.close()
            else:
                begun.append(arrival.begin(arrival.stream, arrival.guest))
        for go_on in begun:
            go_on()
        if self._waiting:
            self._more.set()

    def _next(self) -> _Arrival:
        """The first one of the user whose turn it is."""
        uid, queue = next(iter(self._waiting.items()))
        del self._waiting[uid]
        arrival = queue.popleft()
        if queue:
            self._waiting[uid] = queue  # behind the others
        return arrival


def _is_over(sock: socket.socket) -> bool:
    """Returns True where nothing is left to read, and the other end is closed, not for writing alone."""
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            sock.send(b"")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
