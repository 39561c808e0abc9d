"""The connected users: their shares of connections and memory, and the turns in which connections begin.

Main path: `Arrivals.welcome` accepts at one listener, and puts each connection into its user's queue. At each
turn of the loop `run` begins a few of the waiting ones, one of each user after the other.

Rules: no user has more than a share of the whole, so a user who opens connections without end locks out no
other user. A waiting connection counts as connected, and those over a user's share are closed unread. A
connection that its client has closed is never begun. A crowded listener, at which more wait than are accepted
at a time, pauses. The more of these there are, the longer each pauses: clients then wait in connect(2), and
cost others no time. Runs and hosts have limits of their own (pool/run_table.py, pool/pool.py). A person may
have many uids (linux/subordinates.py).
This file must never know the protocol of a connection.
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
from cortexfs.linux.subordinates import person_of
from cortexfs.peers import safe_sockets
from cortexfs.peers.caller import peer_uid

SHARE = 4  # one user has at most one part in four of the connections
# Arguments stay in memory as long as their run. This is three of the longest allowed (wire.MAX_STRINGS).
MAX_HELD = 64 << 20
MAX_UNREAD = 64  # unread lines, of up to a MiB each, that are on their way to a user's connections
SMALL = 64 << 10  # always admitted: all connections of a user, with so much each, hold at most MAX_HELD
ACCEPTED = 16  # at a time: 0.2 ms
PAUSE = 0.001  # the least that epoll_wait(2) waits; a daemon that never waits is scheduled behind all others
BEGUN = 8  # at a turn of the loop, as each may delay the next one by half a millisecond
PACE = 256  # so many a second, if that is more: with a thousand streams, a turn of the daemon takes 0.25 s


class Guest:
    """One connection of a user."""

    def __init__(self, uid: int, sizes: Counter[int]) -> None:
        self.uid = uid
        self.person = person_of(uid)
        self.bytes = 0
        self._sizes = sizes

    def hold(self, size: int) -> None:
        """Count `size` bytes before they are kept. Raises EAGAIN when this user has too much kept already."""
        if size > SMALL and self._sizes[self.person] + size > MAX_HELD:
            mib = self._sizes[self.person] >> 20
            raise Fault("EAGAIN", f"the runs of uid {self.uid} hold {mib} MiB of arguments; try again later")
        self._sizes[self.person] += size
        self.bytes += size


class Guests:
    """The connected users, by uid."""

    def __init__(self, connections: int) -> None:
        self._most = connections
        self._share = max(1, connections // SHARE)
        self._total = 0
        self.crowded: set[socket.socket] = set()  # listeners at which more wait than are accepted at a time
        self._open: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        self._unread: Counter[int] = Counter()
        self._freed: dict[int, trio.lowlevel.ParkingLot] = {}
        self._turns: WeakValueDictionary[int, trio.Lock] = WeakValueDictionary()

    def turn(self, uid: int) -> trio.Lock:
        """Returns a lock for requests that cost more than their line: each user has one such at a time."""
        person = person_of(uid)
        lock = self._turns.get(person) or trio.Lock()
        self._turns[person] = lock
        return lock

    def enter(self, uid: int) -> Guest | None:
        """Count one more connection of this user. Returns None when there are too many."""
        guest = Guest(uid, self._sizes)
        if self._open[guest.person] >= self._share or self._total >= self._most:
            return None
        self._total += 1
        self._open[guest.person] += 1
        return guest

    def leave(self, guest: Guest) -> None:
        self._total -= 1
        self._open[guest.person] -= 1
        if not self._open[guest.person]:
            del self._open[guest.person]
        self._let_go(guest.person, guest.bytes)

    def hold(self, uid: int, size: int) -> Callable[[], None]:
        """Count `size` bytes before they are kept for messages or sessions, whether or not the user stays
        connected. Call the returned function when they are not needed any more. Raises EAGAIN when too much
        is kept already."""
        person = person_of(uid)
        if self._sizes[person] + size > MAX_HELD:
            why = f"the sessions of uid {uid} and their messages hold {MAX_HELD >> 20} MiB of memory"
            raise Fault("EAGAIN", f"{why}; wait for answers, or close connections")
        self._sizes[person] += size
        return partial(self._let_go, person, size)

    async def room(self, uid: int) -> Callable[[], None]:
        """Wait before sending a long line to a connection of this user, while too many are unread."""
        person = person_of(uid)
        while self._unread[person] >= MAX_UNREAD:
            await self._freed.setdefault(person, trio.lowlevel.ParkingLot()).park()
        self._unread[person] += 1
        return partial(self._leave_room, person)

    def _leave_room(self, person: int) -> None:
        self._unread[person] -= 1
        if not self._unread[person]:
            del self._unread[person]
        if freed := self._freed.pop(person, None):
            freed.unpark_all()

    def _let_go(self, person: int, size: int) -> None:
        self._sizes[person] -= size
        if not self._sizes[person]:
            del self._sizes[person]


# Begins a connection. The returned function goes on with it, after all of this turn have begun.
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
    """The waiting connections of all listeners together, by uid."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Arrival]] = {}  # in the order of their turns
        self._more = trio.Event()

    async def welcome(
        self, listener: socket.socket, guests: Guests, begin: Begin, pause: float = PAUSE
    ) -> None:
        """Accept for ever. Connections over the limit are closed, and their clients see the end."""
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
        """Begin the connections that did not begin when accepted, until cancelled."""
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
        """Accept connections, as many as one time allows, and queue them."""
        guests.crowded.add(listener)
        try:
            for _ in range(ACCEPTED):
                self._take(listener.accept()[0], guests, begin)
        except BlockingIOError:
            guests.crowded.discard(listener)
        except OSError:  # no descriptors are left, so the listener stays crowded until other connections end
            pass

    def _take(self, stream: socket.socket, guests: Guests, begin: Begin) -> None:
        uid = peer_uid(stream)
        guest = guests.enter(uid)
        if guest is None:
            safe_sockets.close(stream)
        else:
            stream.setblocking(False)
            self._waiting.setdefault(guest.person, deque()).append(_Arrival(stream, guests, guest, begin))

    def _begin(self, most: int) -> None:
        continuations = []
        while self._waiting and most:
            most -= 1
            arrival = self._next()
            if _is_over(arrival.stream):
                arrival.close()
            else:
                continuations.append(arrival.begin(arrival.stream, arrival.guest))
        for go_on in continuations:
            go_on()
        if self._waiting:
            self._more.set()

    def _next(self) -> _Arrival:
        """Returns the first connection of the user whose turn it is."""
        person, queue = next(iter(self._waiting.items()))
        del self._waiting[person]
        arrival = queue.popleft()
        if queue:
            self._waiting[person] = queue  # behind the other users
        return arrival


def _is_over(sock: socket.socket) -> bool:
    """Returns True if nothing is left to read and the other end is closed, not only for writing."""
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            sock.send(b"")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
