"""The newest events of each user who reads `.events` (abi.md 1.27).

    recent.add("notes", 1000, event)            an event of user 1000 for the plugin notes
    await recent.told(identity, [b"12"])        the events after number 12, as lines of JSON

Rules: events are kept only for users who read them, at most MAX_EVENTS and MAX_BYTES each. Only a person's
own processes may read; processes of agents, of clients' scripts and in containers may not.
This file must never know how an event is shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity

KEEP_SECONDS = 60.0  # from the last read on
MAX_EVENTS = 256  # of one user
MAX_BYTES = 1 << 20
MAX_READERS = 64


class _Reader:
    """The events of one user since the user's first read."""

    def __init__(self) -> None:
        self.read = 0.0
        self.lines: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def add(self, number: int, line: bytes) -> None:
        self.lines.append((number, line))
        self._size += len(line)
        while len(self.lines) > MAX_EVENTS or self._size > MAX_BYTES:
            self._size -= len(self.lines.popleft()[1])


class RecentEvents:
    def __init__(self, clock: Callable[[], float] = time.monotonic, first: int | None = None) -> None:
        """`first` is the first number. The default is above the numbers of any earlier daemon."""
        self._clock = clock
        self._last = time.time_ns() if first is None else first - 1
        self._readers: dict[int, _Reader] = {}

    def add(self, plugin: str, uid: int, event: bytes) -> None:
        if not self._readers:
            return
        self._forget()
        if reader := self._readers.get(uid):
            self._last += 1
            about = b'"number":%d,"plugin":"%b"' % (self._last, plugin.encode())
            reader.add(self._last, b'{%b,"event":%b}\n' % (about, event))

    async def answer(self, identity: Identity, arguments: Sequence[bytes]) -> bytes:
        """Returns the events after the given number; without one, a line with the newest event's number."""
        is_limited = identity.script is not None or identity.view is not None
        if identity.label or is_limited or identity.is_elsewhere:
            raise Fault("EPERM", "only a person's own processes on this machine may read events")
        after = _number(arguments)
        self._forget()
        reader = self._readers.get(identity.uid)
        if reader is None:
            if len(self._readers) >= MAX_READERS:
                raise Fault("EAGAIN", f"{MAX_READERS} users read events already; try again later")
            reader = self._readers[identity.uid] = _Reader()
        reader.read = self._clock()
        if after is None:
            return b'{"number":%d}\n' % self._last
        return b"".join(line for number, line in reader.lines if number > after)

    def _forget(self) -> None:
        """Drop readers whose last read is older than KEEP_SECONDS."""
        now = self._clock()
        for uid in [uid for uid, reader in self._readers.items() if now - reader.read > KEEP_SECONDS]:
            del self._readers[uid]


def _number(arguments: Sequence[bytes]) -> int | None:
    if not arguments:
        return None
    if len(arguments) > 1 or not arguments[0].isdigit() or len(arguments[0]) > 20:
        raise Fault("EINVAL", "expected the number of the last event that was read, or nothing")
    return int(arguments[0])
