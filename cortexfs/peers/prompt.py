"""Conversations that mostly end before a task of their own would pay, as calls of tools do.

Main path: `ShortConversations.begin` goes on with a conversation as far as it comes without waiting. It may
wait for one socket, for a moment (`is_readable`), or for somebody who tells it something (`told`). Before it
waits for anything else it becomes a task (`in_task`).

Rules: a conversation awaits `in_task` before all of Trio that waits or belongs to a task, cancel scopes too.
In a task that costs nothing and does nothing, and nobody waits a moment there: such code serves both.
This file must never know what is said over a socket.
"""

from __future__ import annotations

import select
import socket
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import trio

# Most calls end before this, also those of 16 callers at once.
MOMENT = 0.05

Conversation: TypeAlias = Coroutine[Any, Any, None]
Note: TypeAlias = Callable[[Callable[[], object]], object]  # is given what to call


class _State:
    is_prompt = False  # the code that runs belongs to no task


@types.coroutine
def in_task() -> Generator[None, None, None]:
    """From here on, this conversation is a task."""
    if _State.is_prompt:
        yield


@types.coroutine
def is_readable(sock: socket.socket) -> Generator[socket.socket, bool | None, bool]:
    """Returns True when there is something to read; False after a moment, or at once in a task."""
    return bool(_State.is_prompt and (yield sock))


async def told(note: Note) -> None:
    """Returns when what `note` is given has been called."""
    if not await _is_told(note):
        event = trio.Event()
        note(event.set)
        await event.wait()


@types.coroutine
def _is_told(note: Note) -> Generator[Note, bool | None, bool]:
    return bool(_State.is_prompt and (yield note))


@types.coroutine
def _rest(conversation: Conversation) -> Generator[Any, Any, None]:
    yield from conversation.__await__()


class _Waiting(NamedTuple):
    conversation: Conversation
    until: float  # by Trio's clock


class ShortConversations:
    def __init__(self, tasks: trio.Nursery) -> None:
        self._tasks = tasks
        self._waiting: dict[int, _Waiting] = {}  # by the number of the socket, in order of time
        self._untold: set[Conversation] = set()
        self._ready: deque[tuple[Conversation, bool | None]] = deque()
        self._sockets = select.epoll()
        self._some = trio.Event()
        self._is_over = False

    def begin(self, conversation: Conversation) -> None:
        """Raises what the conversation does before it waits."""
        self._go_on(conversation, None)

    def _go_on(self, conversation: Conversation, answer: bool | None) -> None:
        """One after the other: a conversation may tell another what that waits for."""
        self._ready.append((conversation, answer))
        while self._ready and not _State.is_prompt:
            self._step(*self._ready.popleft())

    def _step(self, conversation: Conversation, answer: bool | None) -> None:
        _State.is_prompt = True
        try:
            awaited = conversation.send(answer)
        except StopIteration:
            return
        finally:
            _State.is_prompt = False
        if awaited is None or self._is_over:
            self._become_task(conversation)
        elif isinstance(awaited, socket.socket):
            self._sockets.register(awaited, select.EPOLLIN)
            self._waiting[awaited.fileno()] = _Waiting(conversation, trio.current_time() + MOMENT)
            self._some.set()
        else:
            self._untold.add(conversation)
            awaited(partial(self._tell, conversation))

    def _tell(self, conversation: Conversation) -> None:
        if conversation in self._untold:
            self._untold.remove(conversation)
            self._go_on(conversation, True)

    def _become_task(self, conversation: Conversation) -> None:
        async def rest() -> None:
            await _rest(conversation)

        self._tasks.start_soon(rest)

    async def run(self) -> None:
        """Go on with those who wait, until cancelled; then they are tasks, and cancelled with the others."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lose_patience)
                while True:
                    await trio.lowlevel.wait_readable(self._sockets.fileno())
                    for number, _ in self._sockets.poll(0):
                        self._go_on(self._take(number), True)
        finally:
            self._is_over = True
            for conversation in [*map(self._take, [*self._waiting]), *self._untold]:
                self._become_task(conversation)
            self._untold.clear()
            self._sockets.close()

    async def _lose_patience(self) -> None:
        while True:
            await self._some.wait()
            await trio.sleep(MOMENT)
            now = trio.current_time()
            for number in [number for number, one in self._waiting.items() if one.until <= now]:
                self._become_task(self._take(number))
            if not self._waiting:
                self._some = trio.Event()

    def _take(self, number: int) -> Conversation:
        with suppress(OSError):
            self._sockets.unregister(number)
        return self._waiting.pop(number).conversation
