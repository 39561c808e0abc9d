"""How often streams wake the daemon, when there are many of them.

One event of a stream costs the daemon's only thread about as much as a call of a tool, whether one delta
came or ten. A few streams are passed on delta by delta, at once. Many would take all of the time there is:
200 at 25 deltas a second took 91 % of a core, and calls waited 150 ms. So each of them rests after an event,
longer the more there are. What comes meanwhile waits in its socket.

Rules: a rest is no more than a person notices, and no stream rests while there are few. Those that rest wait
for one clock, which ticks while there are any: a sleep of its own costs Trio more than the event does. It
wakes those that would rest longer than the streams that are left now do.
This file must never know what streams are of.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import trio

FEW = 8
SHARE = 0.0006  # seconds of rest for each stream that there is: less than half of a core for all of them
LONGEST = 0.25  # seconds, on average
MOST = 1.5  # times the average
TICK = 0.01  # seconds, of the clock by which they rest


class Pace:
    """The streams of a process."""

    def __init__(self) -> None:
        self._streams = 0
        self._resting: dict[int, trio.lowlevel.ParkingLot] = {}  # by the tick at which they go on

    @contextmanager
    def stream(self) -> Iterator[None]:
        """While one is being read."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    @property
    def seconds(self) -> float:
        """How long each of them rests now."""
        return 0.0 if self._streams <= FEW else min(LONGEST, self._streams * SHARE)

    async def rest(self, least: float = 0.0) -> None:
        """Give all others a turn, and more than one where there are many; for `least` seconds anyway."""
        # Not all for as long: those that were woken together would be woken together for ever.
        longer = self.seconds * random.uniform(0.5, MOST) - least
        if least or longer <= 0:
            await trio.sleep(least)
        if longer > 0:
            await self._until(_tick(longer))

    async def _until(self, tick: int) -> None:
        if not self._resting:
            trio.lowlevel.spawn_system_task(self._wake)
        if tick not in self._resting:
            self._resting[tick] = trio.lowlevel.ParkingLot()
        await self._resting[tick].park()

    async def _wake(self) -> None:
        """Until none rests."""
        try:
            while self._resting:
                await trio.sleep(TICK)
                now, latest = _tick(0.0), _tick(MOST * self.seconds)
                for tick in [tick for tick in self._resting if tick <= now or tick > latest]:
                    self._resting.pop(tick).unpark_all()
        finally:  # the loop ends, with all who might rest
            self._resting.clear()


def _tick(later: float) -> int:
    return int((trio.current_time() + later) / TICK)


PACE = Pace()  # of this process, which has one thread for all of them
