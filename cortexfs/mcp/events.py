"""Messages that a client on HTTP can be told again, when its stream broke off.

Each session has an `EventShelf`; all of them share one `EventMemory`, which forgets the oldest first.

Rules: memory is bounded for all sessions together. A session is told of its own events alone: streams are
named by numbers that every session has.
This file must never know what an event says.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Any, NamedTuple

import anyio
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

MAX_EVENTS = 10_000
MAX_BYTES = 32 << 20


class _Event(NamedTuple):
    number: int
    session: EventShelf
    stream: str
    message: JSONRPCMessage | None
    size: int


class EventMemory:
    def __init__(self) -> None:
        self.events: deque[_Event] = deque()
        self._last = 0
        self._size = 0

    def add(self, session: EventShelf, stream: str, message: JSONRPCMessage | None) -> int:
        size = len(message.model_dump_json()) if message is not None else 0
        self._last += 1
        self.events.append(_Event(self._last, session, stream, message, size))
        self._size += size
        while len(self.events) > MAX_EVENTS or self._size > MAX_BYTES:
            self._size -= self.events.popleft().size
        return self._last


class EventShelf(EventStore):
    def __init__(self, memory: EventMemory) -> None:
        self._memory = memory
        self._added = anyio.Event()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        number = self._memory.add(self, stream_id, message)
        self._added.set()
        self._added = anyio.Event()
        return str(number)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Passes on the later ones of its stream, and those to come until it ends or the client leaves; none
        where that event is not known any more. The SDK would begin to follow when this has ended, and lose
        what is said before it does."""
        mine = [event for event in self._memory.events if event.session is self]
        stream = next((event.stream for event in mine if str(event.number) == last_event_id), None)
        last, is_over = 0, stream is None
        while not is_over:
            added = self._added
            for event in self._after(last):
                last = event.number
                if event.stream != stream:
                    continue
                is_over = is_over or isinstance(event.message, JSONRPCResponse | JSONRPCError)
                if event.number > int(last_event_id) and event.message is not None:
                    await send_callback(EventMessage(event.message, str(event.number)))
            if not is_over and added is self._added:
                await added.wait()

    def _after(self, last: int) -> list[_Event]:
        late = takewhile(lambda event: event.number > last, reversed(self._memory.events))
        return [event for event in late if event.session is self][::-1]


class EventSessions(StreamableHTTPSessionManager):
    """The SDK's, which takes one store for all sessions."""

    _memory: EventMemory | None = None

    @property
    def event_store(self) -> EventStore | None:
        if self._memory is None:
            self._memory = EventMemory()
        return EventShelf(self._memory)

    @event_store.setter
    def event_store(self, _: Any) -> None:
        """Set by the SDK."""
