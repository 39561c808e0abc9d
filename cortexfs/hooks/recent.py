"""The newest events of those users who read them: what `.events` prints (abi.md 1.27).

    recent.add("notes", 1000, event)            which is told to this plugin of this user's
    await recent.told(identity, [b"12"])        lines of JSON, of the events after number 12

Rules: nothing is kept of a user who does not read, and of no user more than MAX_EVENTS and MAX_BYTES. A
person's own processes are told; what runs for an agent, for a client's script or elsewhere is not.
This file must never know who shows an event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity

KEEP_SECONDS = 60.0  # after a user has read
MAX_EVENTS = 256  # of one user
MAX_BYTES = 1 << 20
MAX_READERS = 64


class _Reader:
    """The events of one user, from the first time that the user reads."""

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
        """Numbers begin with `first`; those of another daemon are lower."""
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

    async def told(self, identity: Identity, arguments: Sequence[bytes]) -> bytes:
        """Without a number, the first line alone, which has the number of the newest event."""
        is_limited = identity.script is not None or identity.view is not None
        if identity.label or is_limited or identity.is_elsewhere:
            raise Fault("EPERM", "events are told to a person's own processes alone")
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
        """Readers who have not read for a while are none any more."""
        now = self._clock()
        for uid in [uid for uid, one in self._readers.items() if now - one.read > KEEP_SECONDS]:
            del self._readers[uid]


def _number(arguments: Sequence[bytes]) -> int | None:
    if not arguments:
        return None
    if len(arguments) > 1 or not arguments[0].isdigit() or len(arguments[0]) > 20:
        raise Fault("EINVAL", "expected the number of the last event that was read, or nothing")
    return int(arguments[0])
