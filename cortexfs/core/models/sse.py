"""Server-sent events, as far as model providers use them: bytes in, events out.

    for event in parser.feed(data): ...

Lines end in LF, CRLF or CR. A byte stream may be cut anywhere, also within a character. Comments are
dropped, and so are `id` and `retry`, which no provider uses.

Rules: the kept part of an unfinished event is bounded. An event without its final blank line is dropped.
This file must never know the content of an event.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cortexfs.core.errors import Fault

MAX_EVENT = 4 << 20  # an event may carry a whole answer

_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    name: str  # empty: the server sent none
    data: bytes


class EventParser:
    """The state of one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_begun = False
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Returns the events that these bytes complete. Raises EREMOTEIO for an event over MAX_EVENT."""
        if not data:
            return []
        if not self._has_begun:
            data = self._rest + data
            if _BOM.startswith(data):
                self._rest = data
                return []
            self._has_begun, self._rest, data = True, b"", data.removeprefix(_BOM)
        if b"\n" not in data and b"\r" not in data and not self._rest.endswith(b"\r"):
            self._keep(self._rest + data)
            return []
        lines = _END.split(self._rest + data)
        rest = lines.pop()
        if data.endswith(b"\r"):  # this may be half of a CRLF, so the line waits for more data
            rest = lines.pop() + b"\r"
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._add(line[5:])
            elif line:
                self._field(*line.partition(b":"))
            else:
                if self._data:
                    events.append(ServerEvent(self._name, b"\n".join(self._data)))
                self._name, self._data, self._size = "", [], 0
        self._keep(rest)
        return events

    def _keep(self, rest: bytes) -> None:
        self._rest = rest
        if len(rest) + self._size > MAX_EVENT:
            raise Fault("EREMOTEIO", f"an event of the stream is over {MAX_EVENT >> 20} MiB")

    def _add(self, value: bytes) -> None:
        value = value.removeprefix(b" ")
        self._data.append(value)
        self._size += len(value)

    def _field(self, name: bytes, _: bytes, value: bytes) -> None:
        if name == b"data":
            self._add(value)
        elif name == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
