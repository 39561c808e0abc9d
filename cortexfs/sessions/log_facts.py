"""The facts in a session's log, line by line: its ids, runs and messages, and the offsets of ids.

Rules: values in, values out. The log is the only copy, so all facts about a session can be gathered anew by
one pass over its lines; `LogFacts` is that pass, for a file at open and for each append. A line begins with
type and id, in this order (abi.md 6.1), so most lines need no parser.
This file must never know files, tasks or who reads.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import msgspec

from cortexfs.core.frames import MAX_LINE

HEAD = re.compile(rb'\{"type":"[a-z_]+","id":"([1-9][0-9]{0,17})"')
HEADS = re.compile(b"^" + HEAD.pattern, re.MULTILINE)
DONE = b'{"type":"done"'
MESSAGE = b'{"type":"message",'
# The lines that change the facts; all others, deltas above all, only make the log longer.
OWNER = b'{"type":"owner"'
START = b'{"type":"start"'
TELLING = (START, MESSAGE, DONE, b'{"type":"tool_call"', OWNER)
STATES = {"ok": "done", "error": "error", "cancelled": "cancelled"}

INDEX_STEP = 1 << 16  # bytes: to find its place, a resume reads at most these, and one append
INDEX_ENTRIES = 4096  # then every other entry goes: 64 KiB of memory, however long the log


class _Line(msgspec.Struct):
    type: str
    id: str
    run: str | None = None
    role: str | None = None
    status: str | None = None
    cwd: str | None = None
    machine: str | None = None


_decoder = msgspec.json.Decoder(_Line)


def id_of(line: bytes) -> int | None:
    """Returns the event id of a line, or None if the line is no event."""
    head = HEAD.match(line)
    return int(head[1]) if head else None


def check(line: bytes) -> None:
    """Raises ValueError for one of the TELLING lines if it cannot be understood."""
    try:
        _decoder.decode(line)
    except RecursionError:  # another machine may have written it
        raise ValueError("it is nested too deeply") from None


class LogFacts:
    """The facts about a session after the lines that were taken."""

    def __init__(self) -> None:
        self.last = 0
        self.runs = 0
        self.messages = 0
        self.cwd: str | None = None
        self.active: dict[str, None] = {}  # runs that have a start and no done, oldest first
        self.status: str | None = None
        self.machine: str | None = None  # the machine of a team that has the session
        self.places = array("q")  # the offset of each message
        self.latest: list[tuple[int, int]] = []  # the parts of the last answer: offset, length
        self._parts: list[tuple[int, int]] = []

    @property
    def state(self) -> str:
        if self.active:
            return "active"
        return STATES.get(self.status or "", "idle")

    def take(self, line: bytes, offset: int) -> None:
        """Take the facts of one of the TELLING lines, at `offset`. Raises ValueError if it is none."""
        event = _decoder.decode(line)
        if event.type == "start":
            self.runs += 1
            self.active[event.run or ""] = None
            self.cwd = event.cwd or self.cwd
            self._parts = []
        elif event.type == "message":
            self.messages += 1
            self.places.append(offset)
            # A long answer is several frames in a row, and the next answer begins after a call or a start.
            if event.role == "assistant":
                self._parts.append((offset, len(line)))
                self.latest = self._parts
        elif event.type == "done":
            self.active.pop(event.run or "", None)
            self.status = event.status
        elif event.type == "owner":
            self.machine = event.machine
        else:
            self._parts = []

    def values(self) -> tuple[Any, bytes, list[tuple[int, int]], list[tuple[int, int]]]:
        """Returns the values for `restore`."""
        facts = self.last, self.runs, self.messages, self.cwd, [*self.active], self.status, self.machine
        return facts, self.places.tobytes(), [*self.latest], [*self._parts]

    def restore(self, known: Scanned) -> None:
        self.last, self.runs, self.messages, self.cwd, active, self.status, self.machine = known.facts
        self.active = dict.fromkeys(active)
        self.places.frombytes(known.places)
        self._parts = known.parts
        # As long as an answer goes on, they are one list.
        self.latest = known.parts if known.latest == known.parts else known.latest


class Index:
    """The offsets of ids: sparse, so that its memory does not grow with the log."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._offsets = array("q")
        self._step = INDEX_STEP
        self._next = 0

    def add(self, id: int, offset: int) -> None:
        """Note that the event `id` is at `offset`, if the last note is a step away."""
        if offset < self._next:
            return
        self._ids.append(id)
        self._offsets.append(offset)
        if len(self._ids) >= INDEX_ENTRIES:
            self._ids, self._offsets, self._step = self._ids[::2], self._offsets[::2], self._step * 2
        self._next = offset + self._step

    def values(self) -> tuple[bytes, bytes, int, int]:
        """Returns the values for `restore`."""
        return self._ids.tobytes(), self._offsets.tobytes(), self._step, self._next

    def restore(self, ids: bytes, offsets: bytes, step: int, next_: int) -> None:
        self._ids.frombytes(ids)
        self._offsets.frombytes(offsets)
        self._step, self._next = step, next_

    def before(self, id: int) -> int:
        """Returns an offset at which a line begins, at or before the event `id`."""
        at = bisect_right(self._ids, id) - 1
        return self._offsets[at] if at >= 0 else 0


class Scanned(msgspec.Struct, frozen=True, array_like=True):
    """The findings of one pass over the beginning of a log, as values."""

    size: int
    facts: tuple[int, int, int, str | None, list[str], str | None, str | None]
    places: bytes
    latest: list[tuple[int, int]]
    parts: list[tuple[int, int]]
    index: tuple[bytes, bytes, int, int]

    @staticmethod
    def of(size: int, facts: LogFacts, index: Index) -> Scanned:
        return Scanned(size, *facts.values(), index.values())


class Scan:
    """One pass over a log: feed it the pieces of the file, in order, or only those behind `known`."""

    def __init__(self, known: Scanned | None = None) -> None:
        self.facts = LogFacts()
        self.index = Index()
        self.size = self.read = 0  # the end of the last good line, and the bytes that were fed
        if known is not None:
            self.facts.restore(known)
            self.index.restore(*known.index)
            self.size = self.read = known.size
        self.damaged: list[int] = []  # lines that are no events, with events after them: their offsets
        self._doubtful: list[int] = []
        self._rest = b""
        self._line = b""  # the last good one

    @property
    def begun(self) -> int | None:
        """The offset of a start at the log's end that has nothing behind it, or None."""
        return self.size - len(self._line) - 1 if self._line.startswith(START) else None

    def feed(self, piece: bytes) -> None:
        data = self._rest + piece
        start = self.read - len(self._rest)
        self.read += len(piece)
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > 2 * MAX_LINE:  # no event, so only its end has to be remembered
            self._doubt(start + end)
            self._rest = b"?"
        self._take(data[:end].split(b"\n")[:-1], start)

    def _take(self, lines: Iterable[bytes], offset: int) -> None:
        for line in lines:
            if (id := self._judge(line, offset)) is None:
                self._doubt(offset)
            else:
                self.facts.last = id
                self.index.add(id, offset)
                self.size = offset + len(line) + 1
                self._line = line
                if self._doubtful:
                    self.damaged += self._doubtful
                    self._doubtful = []
            offset += len(line) + 1

    def _doubt(self, offset: int) -> None:
        if len(self._doubtful) < 100:  # enough to report
            self._doubtful.append(offset)

    def _judge(self, line: bytes, offset: int) -> int | None:
        """Returns the id of a good line, after taking its facts, or None for another line."""
        id = id_of(line)
        if id is None or id <= self.facts.last or not line.endswith(b"}"):
            return None
        if line.startswith(TELLING):
            try:
                self.facts.take(line, offset)
            except ValueError:
                return None
        return id
