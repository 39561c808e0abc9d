"""The share of one user in the daemon itself: connections, and memory for what they say.

Rules: no user has more than a share of what there is for all, so that one who opens connections
without end locks out only himself. Runs and hosts have limits of their own (pool/run_table.py, pool/pool.py).
This file must never know what is said over a connection.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

import trio

from cortexfs.core.errors import Fault

SHARE = 4  # one user has at most one part in four of the connections
# Arguments stay in memory for as long as their run: three of the longest that may be (wire.MAX_STRINGS).
MAX_HELD = 64 << 20
MAX_UNREAD = 64  # lines of up to a MiB each that are on their way to connections of a user
SMALL = 64 << 10  # always let in: all connections of a user with so much are no more than MAX_HELD


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
