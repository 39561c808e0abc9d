"""The last messages to clients on HTTP, for a client whose stream broke off and who asks again.

Each session has an `EventShelf`; all shelves share one `EventMemory`, which drops the oldest message first.

Rules: the memory of all sessions together is bounded. A session gets its own events alone, as the names of
streams are numbers that other sessions use too.
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
        """Send the later events of the stream, and those to come until the stream ends or the client leaves.
        Send none if the event was dropped. The SDK follows the stream itself only when this has returned,
        and would lose the events between."""
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
    """The SDK's manager of sessions, which takes one store for all: this one makes a shelf for each."""

    _memory: EventMemory | None = None

    @property
    def event_store(self) -> EventStore | None:
        if self._memory is None:
            self._memory = EventMemory()
        return EventShelf(self._memory)

    @event_store.setter
    def event_store(self, _: Any) -> None:
        """The SDK assigns the store that it was passed."""
