"""A proxy that spoils a real server's answers: it cuts, delays, swaps and doubles events, or sends others.
It asks for each answer once and reads it whole first, so that each fault is the same each time.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec
import trio

from tests.shell.provider_server import SSE, Cut, Move, Pause, Provider, Request, status
from tests.waiting import PATIENCE

Fault: TypeAlias = Callable[[list[bytes]], Sequence[Move]]  # turns the events of an answer into moves

_HOP = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding")


class Proxy(Provider):
    """A proxy for the server at `url`. `faults` has a fault for each request; the last serves all others."""

    def __init__(self, url: str) -> None:
        super().__init__([])
        self._host = urlsplit(url).netloc
        self.faults: list[Fault] = [whole]
        self._known: dict[bytes, tuple[int, bytes]] = {}

    async def moves(self, request: Request) -> Sequence[Move]:
        asked = msgspec.json.encode((request.path, request.body))
        if asked not in self._known:
            self._known[asked] = await trio.to_thread.run_sync(self._forward, request)
        number, data = self._known[asked]
        if number != 200:
            return status(number, data)
        fault = self.faults.pop(0) if len(self.faults) > 1 else self.faults[0]
        return fault([event + b"\n\n" for event in data.split(b"\n\n") if event])

    def _forward(self, request: Request) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, timeout=PATIENCE)
        try:
            headers = {name: value for name, value in request.headers.items() if name not in _HOP}
            body = None if request.body is None else msgspec.json.encode(request.body)
            connection.request(request.method, request.path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def whole(events: list[bytes]) -> Sequence[Move]:
    return [SSE, *events, Cut()]


def bytewise(events: list[bytes]) -> Sequence[Move]:
    """Send single bytes, so that lines and characters come in pieces."""
    return [SSE, *(bytes([byte]) for byte in b"".join(events)), Cut()]


def torn_lines(events: list[bytes]) -> Sequence[Move]:
    """Send pieces that end anywhere, with time between them."""
    data = b"".join(events)
    pieces = [data[start : start + 97] for start in range(0, len(data), 97)]
    return [SSE, *(move for piece in pieces for move in (piece, Pause(0.001))), Cut()]


def carriage_returns(events: list[bytes]) -> Sequence[Move]:
    """Send the other line ends that an event stream may have, and comments between events."""
    return [SSE, *(b": still here\r\n\r\n" + event.replace(b"\n", b"\r\n") for event in events), Cut()]


def cut(events: list[bytes]) -> Sequence[Move]:
    return [SSE, *events[: len(events) // 2], Cut()]


def reset(events: list[bytes]) -> Sequence[Move]:
    # A reset may lose data that was sent before it and not yet read (tcp(7)).
    return [SSE, *events[: len(events) // 2], Pause(0.2), Cut(reset=True)]


def cut_in_an_event(events: list[bytes]) -> Sequence[Move]:
    middle = len(events) // 2
    return [SSE, *events[:middle], events[middle][: len(events[middle]) // 2], Cut()]


def cut_in_a_character(events: list[bytes]) -> Sequence[Move]:
    middle = len(events) // 2
    return [SSE, *events[:middle], b'data: {"text": "\xe2\x82', Cut()]


def cut_before_its_end(events: list[bytes]) -> Sequence[Move]:
    """Send the whole answer without the events that mark its end."""
    said = [event for event in events if not any(word in event for word in _ENDS)]
    return [SSE, *said, Cut()]


_ENDS = (b"[DONE]", b'finish_reason": "', b'finish_reason":"', b"message_delta", b"message_stop",
         b"response.completed")  # fmt: skip


_WORD = re.compile(rb'("(?:content|text|delta)": ?")[ -!#-\[\]-~]')  # up to the first character of a word


def bad_byte(events: list[bytes]) -> Sequence[Move]:
    """Change one byte of the text."""
    data, changed = _WORD.subn(lambda found: found[1] + b"\xff", b"".join(events), count=1)
    assert changed
    return [SSE, data, Cut()]


def no_text(events: list[bytes]) -> Sequence[Move]:
    middle = len(events) // 2
    return [SSE, *events[:middle], b"data: \xff\xfe{\n\n", *events[middle:], Cut()]


def no_json(events: list[bytes]) -> Sequence[Move]:
    middle = len(events) // 2
    return [SSE, *events[:middle], b"event: x\ndata: <html>\n\n", *events[middle:], Cut()]


def noise(events: list[bytes]) -> Sequence[Move]:
    return [b"\x16\x03\x01\x00\xee garbage \xff\r\n\r\n", Cut()]


def nothing(events: list[bytes]) -> Sequence[Move]:
    return [Cut()]


def empty(events: list[bytes]) -> Sequence[Move]:
    return [SSE, Cut()]


def busy(events: list[bytes]) -> Sequence[Move]:
    return status(429, b"{}", retry_after="0.01")


def closed(events: list[bytes]) -> Sequence[Move]:
    return status(429, b"{}", retry_after="86400")


def broken(events: list[bytes]) -> Sequence[Move]:
    return status(500, b"<html>\xff oops")


def late(events: list[bytes]) -> Sequence[Move]:
    """Wait longer than `first_secs = 1` lets a provider take."""
    return [Pause(3), *whole(events)]


def silent(events: list[bytes]) -> Sequence[Move]:
    middle = len(events) // 2
    return [SSE, *events[:middle], Pause(2), *events[middle:], Cut()]


def ended_first(events: list[bytes]) -> Sequence[Move]:
    """Send the events in reverse, the last event first."""
    return [SSE, *reversed(events), Cut()]


def doubled(events: list[bytes]) -> Sequence[Move]:
    return [SSE, *(event for event in events for _ in range(2)), Cut()]


def swapped(events: list[bytes]) -> Sequence[Move]:
    """Swap the events of each pair of neighbours."""
    return [
        SSE,
        *(event for start in range(0, len(events), 2) for event in events[start : start + 2][::-1]),
        Cut(),
    ]
