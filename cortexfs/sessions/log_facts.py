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
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cortexfs.core.frames import MAX_LINE

if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array  # Python 3.11 has no parameters for it

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


def _numbers() -> Numbers:
    return array("q")


@dataclass
class LogFacts:
    """The facts about a session after the lines that were taken."""

    last: int = 0
    runs: int = 0
    messages: int = 0
    cwd: str | None = None
    active: dict[str, None] = field(default_factory=dict)  # runs that have a start and no done, oldest first
    status: str | None = None
    machine: str | None = None  # the machine of a team that has the session
    places: Numbers = field(default_factory=_numbers)  # the offset of each message
    latest: list[tuple[int, int]] = field(default_factory=list)  # parts of the last answer: offset, length
    _parts: list[tuple[int, int]] = field(default_factory=list)

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


@dataclass
class Index:
    """The offsets of ids: sparse, so that its memory does not grow with the log."""

    _ids: Numbers = field(default_factory=_numbers)
    _offsets: Numbers = field(default_factory=_numbers)
    _step: int = INDEX_STEP
    _next: int = 0

    def add(self, id: int, offset: int) -> None:
        """Note that the event `id` is at `offset`, if the last note is a step away."""
        if offset < self._next:
            return
        self._ids.append(id)
        self._offsets.append(offset)
        if len(self._ids) >= INDEX_ENTRIES:
            self._ids, self._offsets, self._step = self._ids[::2], self._offsets[::2], self._step * 2
        self._next = offset + self._step

    def before(self, id: int) -> int:
        """Returns an offset at which a line begins, at or before the event `id`."""
        at = bisect_right(self._ids, id) - 1
        return self._offsets[at] if at >= 0 else 0


Values = TypeVar("Values", LogFacts, Index)


def _copied(values: Values) -> Values:
    """Returns a copy. deepcopy would copy each part of an answer, of which there may be a million."""
    return replace(values, **{name: copy(value) for name, value in vars(values).items()})


class Scanned(msgspec.Struct, frozen=True, array_like=True):
    """The findings of one pass over the beginning of a log."""

    size: int
    facts: LogFacts
    index: Index

    @staticmethod
    def of(size: int, facts: LogFacts, index: Index) -> Scanned:
        """Returns a copy of them."""
        return Scanned(size, _copied(facts), _copied(index))


class Scan:
    """One pass over a log: feed it the pieces of the file, in order, or only those behind `known`."""

    def __init__(self, known: Scanned | None = None) -> None:
        self.facts, self.index = LogFacts(), Index()
        self.size = self.read = 0  # the end of the last good line, and the bytes that were fed
        if known is not None:
            self.facts, self.index = _copied(known.facts), _copied(known.index)
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
