"""Limits how often streams wake the daemon when there are many of them.

One event of a stream costs the daemon's only thread about as much as a call of a tool, for one delta as for
ten. A few streams are passed on delta by delta, at once. Many would take all of the thread's time: 200 at 25
deltas a second took 91 % of a core, and calls waited 150 ms. So each stream rests after an event, longer if
there are more streams. Deltas that arrive meanwhile wait in the socket.

Rules: a rest is too short to be noticed, and no stream rests while there are few. All resting streams share
one clock, which ticks while a stream rests: a sleep for each would cost Trio more than the event does. When
streams end, the clock wakes those whose rest is too long for the lower number.
This file must never know the content of a stream.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import trio

FEW = 8
SHARE = 0.0006  # seconds of rest for each stream: all of them take less than half of a core
LONGEST = 0.25  # seconds, on average
MOST = 1.5  # times the average
TICK = 0.01  # seconds, of the clock


class Pace:
    """The streams of a process."""

    def __init__(self) -> None:
        self._streams = 0
        self._resting: dict[int, trio.lowlevel.ParkingLot] = {}  # by the tick that wakes them

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream while it is being read."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    @property
    def seconds(self) -> float:
        """The average rest of a stream now."""
        return 0.0 if self._streams <= FEW else min(LONGEST, self._streams * SHARE)

    async def rest(self, least: float = 0.0) -> None:
        """Let other tasks run for one turn or `least` seconds, and for longer if there are many streams."""
        # Rests differ, as streams that were woken together would else be woken together for ever.
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
        """Wake resting streams until none rests."""
        try:
            while self._resting:
                await trio.sleep(TICK)
                now, latest = _tick(0.0), _tick(MOST * self.seconds)
                for tick in [tick for tick in self._resting if tick <= now or tick > latest]:
                    self._resting.pop(tick).unpark_all()
        finally:  # the loop of Trio ends, with all tasks that rest
            self._resting.clear()


def _tick(later: float) -> int:
    return int((trio.current_time() + later) / TICK)


PACE = Pace()  # of this process, which has one thread for all streams
