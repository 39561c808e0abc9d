"""What one user may take of the daemon itself: connections, and memory for what they say.

Rules: no user has more than a share of what there is for all, so that one who opens connections
without end locks out only himself. Runs and hosts have limits of their own (runs.py, hosts.py).
This file must never know what is said over a connection.
"""

from __future__ import annotations

from collections import Counter

from cortexfs.core.errors import Fault

SHARE = 4  # one user has at most one part in four of the connections
# Arguments stay in memory for as long as their run: three of the longest that may be (wire.MAX_STRINGS).
MAX_HELD = 64 << 20
SMALL = 64 << 10  # always let in: all connections of a user with so much are no more than MAX_HELD


class Guests:
    """Who is connected, by uid."""

    def __init__(self, connections: int) -> None:
        self._most = connections
        self._share = max(1, connections // SHARE)
        self._total = 0
        self._open: Counter[int] = Counter()
        self._held: Counter[int] = Counter()

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
        self._held[guest.uid] -= guest.bytes
        if not self._open[guest.uid]:
            del self._open[guest.uid], self._held[guest.uid]


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
