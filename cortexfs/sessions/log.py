"""One session's log: the events that are appended, the events that are on disk, and the reading of both.

The log is the buffer (docs/design.md): a run appends, and every reader goes through the same bytes at its own
position, first the present events, then the new ones. Nothing is queued for a reader, so a reader that stops
reading costs nothing.

Promises
- A reader sees an event once it is in the file: kill -9 loses nothing that a reader has seen. A power failure
may lose deltas that were seen live, and their ids are then not used again.
- A `done`, and what follows it, is seen when all up to it is on disk, not before.
- When appended events cannot be written they are lost together, up to the last one: `fault` says why, and
nothing can be appended behind the hole until the owner has called `reset`.
- A start is appended together with its message: a crash that parts the two leaves neither.

This file must never know paths or threads, nor decide what a run does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.sessions.log_facts import DONE, HEAD, HEADS, TELLING, Index, LogFacts, Scan, check, id_of

MEND = "remove some with ctx session rm or ctx session gc, or have the limit raised in config.toml"
READ = 1 << 16  # bytes that a reader takes at once
SEARCH = 1 << 18
LINE = 1 << 12  # bytes of most messages
TAIL = 1 << 12  # bytes at the end of a log that stay in memory, for readers who wait for more
ROOM = 1 << 20  # bytes not yet in the file at which a run waits
UNWRITTEN = 8 << 20  # and at which an append that does not wait is refused
SYNC_AFTER = 4 << 20  # bytes written and not synced at which a sync begins, even if no task waits for it
UNSYNCED = 32 << 20  # the most bytes that a power failure can take
TOGETHER = 16 << 20  # bytes not yet in the files of all sessions at which no run may add to them
FEW = 8  # runs that go on when these bytes get fewer
# After a power failure, ids skip those of lost events: of UNSYNCED bytes at 40 or more an event.
LEAP = 1_000_000


class Most(msgspec.Struct, frozen=True):
    session_bytes: int = 256 << 20
    space_bytes: int = 4096 << 20
    space_sessions: int = 10_000


class Share:
    def __init__(self, most: Most) -> None:
        self.sessions = 0
        self.bytes = 0
        self._most = most

    def admit(self, size: int, is_new: bool) -> None:
        """Called before new events in a session of `size` bytes. Raises EFBIG or EDQUOT over a limit."""
        most = self._most
        if size >= most.session_bytes:
            mib = most.session_bytes >> 20
            raise Fault("EFBIG", f"the session holds {mib} MiB, which is the limit; begin another session")
        if self.bytes >= most.space_bytes:
            raise Fault("EDQUOT", f"there are {most.space_bytes >> 20} MiB of sessions already; {MEND}")
        if is_new and self.sessions >= most.space_sessions:
            raise Fault("EDQUOT", f"there are {most.space_sessions} sessions already; {MEND}")


class _Wait:
    __slots__ = ("done", "fault", "id")

    def __init__(self, id: int) -> None:
        self.id = id
        self.done = trio.Event()
        self.fault: Fault | None = None


class WriteLoad:
    """The bytes that all sessions together have appended and not yet written."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lot = trio.lowlevel.ParkingLot()

    @property
    def is_heavy(self) -> bool:
        return self.bytes >= TOGETHER

    async def lighter(self) -> None:
        await self._lot.park()

    def count(self, size: int) -> None:
        self.bytes += size
        if size < 0 and not self.is_heavy:
            # A few at a time, as each adds bytes. All below half, as at zero bytes nothing would wake them.
            self._lot.unpark(count=FEW) if self.bytes > TOGETHER // 2 else self._lot.unpark_all()


class Log(ABC):
    """A session's events; `Sessions` creates logs and moves appended events to their place.

    Its attributes tell how far its events are: `newest` is the last event appended, `last` the last one in
    the file. Of its bytes, `synced` are on disk and `visible` may be seen by readers. `grown` is called when
    readers may see more.
    """

    def __init__(
        self,
        found: Scan,
        newest: int,
        touched: Callable[[Log], None],
        load: WriteLoad,
        share: Share | None = None,
        is_new: bool = False,
    ) -> None:
        self._load = load
        self._touched = touched
        self._share = share  # its space's share, which bears the written bytes
        self._is_new = is_new  # True until its space counts this session
        self.grown: Callable[[], None] = nobody
        self._lot = trio.lowlevel.ParkingLot()
        self.pending: list[bytes] = []  # appended, and not yet in the file
        self._pending_bytes = 0
        self._waits: list[_Wait] = []
        self._dones: deque[int] = deque()  # the offsets of those that are not on disk yet
        self.newest = newest
        self.ended = False
        self.is_copy = False  # of a session that another machine of a team has
        self.fault: Fault | None = None
        self.adopt(found)

    def adopt(self, found: Scan) -> None:
        """Take over the scan of the log, all of which is on disk."""
        self.facts: LogFacts = found.facts
        self.index: Index = found.index
        self.size = self.synced = self.visible = found.size
        self.synced_id = found.facts.last
        self._tail = b""
        self._dones.clear()

    @property
    def last(self) -> int:
        return self.facts.last

    # The owner's side.

    def append(self, lines: Sequence[bytes]) -> None:
        """Add events: encoded frames, with ids that increase from `newest`. They are written soon after."""
        if not lines:
            return
        self._admit()
        data = b"".join(lines)
        heads = HEAD.match(lines[0]), HEAD.match(lines[-1])
        first, last = (int(head[1]) if head else 0 for head in heads)
        if first <= self.newest or last < first + len(lines) - 1:
            raise ValueError("event ids must increase strictly")
        ends = data.count(b"\n"), data.count(b"}\n")
        if ends != (len(lines), len(lines)) or len(max(lines, key=len)) > MAX_LINE:
            raise ValueError(f"an event is one line of at most {MAX_LINE} bytes")
        for line in lines:
            if line.startswith(TELLING):
                check(line)
        is_first = not self.pending  # else the writer is about to take them already
        self.pending += lines
        self._count(len(data))
        self.newest = last
        if is_first:
            self._touched(self)

    def _admit(self) -> None:
        if self.ended:
            raise Fault("ENOENT", "the session was removed; begin another")
        if self.fault:
            raise self.fault
        if self._pending_bytes >= UNWRITTEN or self.unsynced >= UNSYNCED or self._load.bytes >= 2 * TOGETHER:
            raise Fault("EAGAIN", "the disk does not keep up with this session; wait, then send again")

    @property
    def unsynced(self) -> int:
        return self.end_place - self.synced

    @property
    def end_place(self) -> int:
        """The offset of the next event, if all events before it can be written."""
        return self.size + self._pending_bytes

    async def room(self) -> None:
        """Wait until the disk has caught up, for a run that appends without end. Raises as `append` does."""
        while not self.fault and not self.ended:
            is_crowded = self._pending_bytes >= ROOM or self.unsynced >= UNSYNCED // 2
            if is_crowded or (self._pending_bytes and self._load.is_heavy):
                await self._lot.park()
            elif self._load.is_heavy:
                await self._load.lighter()
            else:
                break
        self._admit()
        self.check_share()

    def check_share(self) -> None:
        """Called before more events. Raises EFBIG or EDQUOT if the log's owner may have no more of them."""
        if self._share:
            self._share.admit(self.size, self._is_new)

    def _count(self, size: int) -> None:
        self._pending_bytes += size
        self._load.count(size)

    async def durable(self, id: int) -> None:
        """Wait until the event `id` and all before it are on disk."""
        if id > self.newest:
            raise ValueError("that event was never appended")
        if id <= self.synced_id:
            await trio.lowlevel.checkpoint()
            return
        if self.ended:
            raise Fault("ENOENT", "the session was removed; begin another")
        if self.fault and id > self.last:
            raise self.fault
        wait = _Wait(id)
        self._waits.append(wait)
        if not self.pending:
            self._touched(self)
        try:
            await wait.done.wait()
        finally:
            if wait in self._waits:
                self._waits.remove(wait)
        if wait.fault:
            raise wait.fault

    def reset(self) -> int:
        """Go on after a fault. Returns the id of the last event in the log; all events after it are lost."""
        self.fault = None
        return self.last

    async def place(self, id: int) -> int:
        """Returns the offset where the first event from `id` on is, or will be."""
        if id > self.last:
            return self.size
        offset = self.index.before(id)
        while data := await self.lines(offset, SEARCH):
            for head in HEADS.finditer(data):
                if int(head[1]) >= id:
                    return offset + head.start()
            offset += len(data)
        return offset

    async def lines(self, offset: int, size: int = READ) -> bytes:
        """Returns whole lines from `offset`, at least one, of about `size` bytes; b"" if none is visible."""
        size = min(size, self.visible - offset)
        if size <= 0:
            return b""
        data = await self.fetch(offset, size)
        while not (end := data.rfind(b"\n") + 1):
            more = await self.fetch(offset + len(data), min(MAX_LINE, self.visible - offset - len(data)))
            if not more:
                raise Fault("EIO", "the session's log is shorter than it was; resume from the beginning")
            data += more
        return data[:end]

    def lines_at_hand(self, offset: int) -> bytes:
        """Returns the visible lines from `offset` on, or b"" if the end of the log that is in memory does not
        have them."""
        begin = offset - self.size + len(self._tail)
        return self._tail[begin : begin + max(self.visible - offset, 0)] if begin >= 0 else b""

    @abstractmethod
    async def fetch(self, offset: int, size: int) -> bytes:
        """Returns up to `size` bytes from `offset`, at least one if there is one."""

    async def messages(self, room: int, before: int) -> list[bytes]:
        """Returns the newest lines of messages that fit into `room` bytes, oldest first. Messages from the
        event `before` on are left out."""
        end = await self.place(before)
        at, found = bisect_left(self.facts.places, end), deque[bytes]()
        while at:
            at -= 1
            data = await self.lines(self.facts.places[at], LINE)
            line = data[: data.index(b"\n") + 1]
            room -= len(line)
            if room < 0:
                break
            found.appendleft(line)
        return list(found)

    # The writer's side.

    @property
    def holds_done(self) -> bool:
        """Returns True if there is a done that readers may not see yet."""
        return bool(self._dones)

    @property
    def wants_sync(self) -> bool:
        behind = self.size > self.synced
        return behind and bool(self._dones or self._waits or self.size - self.synced >= SYNC_AFTER)

    def take(self) -> tuple[list[bytes], bytes]:
        """Returns the lines that have to be written, and the same lines as one piece."""
        lines, self.pending = self.pending, []
        return lines, b"".join(lines)

    def written(self, lines: Sequence[bytes], data: bytes) -> bool:
        """Note that these lines are in the file, as this data. Returns True if they change the facts."""
        self._count(-len(data))
        if self._share:
            self._share.bytes += len(data)
            self._share.sessions += self._is_new
            self._is_new = False
        first, last = id_of(lines[0]), id_of(lines[-1])
        assert first is not None
        assert last is not None
        self.index.add(first, self.size)
        offset, telling = self.size, False
        for line in lines:
            if line.startswith(TELLING):
                telling = True
                self.facts.take(line, offset)
                if line.startswith(DONE):
                    self._dones.append(offset)
            offset += len(line)
        self.size, self.facts.last = offset, last
        tail = self._tail + data if len(data) <= TAIL else b""
        self._tail = tail if len(tail) <= TAIL else data
        self._show()
        return telling

    def on_disk(self, size: int, id: int) -> None:
        """Note that all up to `size` and to the event `id` is on disk."""
        self.synced, self.synced_id = max(self.synced, size), max(self.synced_id, id)
        while self._dones and self._dones[0] < self.synced:
            self._dones.popleft()
        for wait in [wait for wait in self._waits if wait.id <= self.synced_id]:
            self._waits.remove(wait)
            wait.done.set()
        self._show()

    def _show(self) -> None:
        before, self.visible = self.visible, self._dones[0] if self._dones else self.size
        self._lot.unpark_all()
        if self.visible > before:
            self.grown()

    def fail(self, fault: Fault) -> None:
        """Give up all events that are not in the file, for this reason."""
        self.fault = fault
        self._drop()
        self._release([wait for wait in self._waits if wait.id > self.last], fault)

    def fail_sync(self, fault: Fault) -> None:
        """Give up all events that are not on disk, so that no caller takes them to be there."""
        self.fail(fault)
        self._release(self._waits, fault)

    def give_up(self, fault: Fault) -> None:
        """Fail all tasks that wait for the disk. Events in the file stay."""
        self._release(self._waits, fault)

    def end(self) -> None:
        """End the log of a removed session, for its readers, too."""
        self.ended = True
        self._drop()
        self._release(self._waits, Fault("ENOENT", "the session was removed; begin another"))

    def _drop(self) -> None:
        self.pending = []
        self._count(-self._pending_bytes)

    def _release(self, waits: Sequence[_Wait], fault: Fault) -> None:
        for wait in list(waits):
            self._waits.remove(wait)
            wait.fault = fault
            wait.done.set()
        self._lot.unpark_all()


def nobody() -> None:
    """Does nothing: the log has no readers."""
