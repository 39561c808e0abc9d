"""How often streams wake the daemon, when there are many of them.

One event of a stream costs the daemon's only thread about as much as a call of a tool, whether one delta
came or ten. A few streams are passed on delta by delta, at once. Many would take all of the time there is:
200 at 25 deltas a second took 91 % of a core, and calls waited 150 ms. So each of them rests after an event,
longer the more there are. What comes meanwhile waits in its socket.

Rules: a rest is no more than a person notices, and no stream rests while there are few.
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


class Pace:
    """The streams of a process."""

    def __init__(self) -> None:
        self._streams = 0

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

    async def rest(self) -> None:
        """Give all others a turn, and more than one where there are many."""
        if not (seconds := self.seconds):
            await trio.lowlevel.checkpoint()
        else:
            # Not all for as long: those that were woken together would be woken together for ever.
            await trio.sleep(seconds * random.uniform(0.5, 1.5))


PACE = Pace()  # of this process, which has one thread for all of them
