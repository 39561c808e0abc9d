"""Short conversations: most end before a task of their own would pay, as calls of tools do.

Main path: `ShortConversations.begin` runs a conversation until it has to wait. It may wait a moment for one
socket (`is_readable`) or for a `Bell`, or for another conversation to call it back (`told`). Before any other
wait it becomes a task (`in_task`).
Rules: a conversation awaits `in_task` before anything of Trio that waits or needs a task, cancel scopes too.
In a task, `in_task` costs and does nothing, and waits for a moment return at once: the same code serves both.
This file must never know the protocol of a socket.
"""

from __future__ import annotations

import math
import select
import socket
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import trio

# Most calls end within this, even those of 16 callers at once.
MOMENT = 0.05

Conversation: TypeAlias = Coroutine[Any, Any, None]
Note: TypeAlias = Callable[[Callable[[], object]], object]  # gets the function to call


class _State:
    is_prompt = False  # the running code belongs to no task


class _Wish(NamedTuple):
    """The socket or note that a conversation waits for, and for how many seconds."""

    awaited: socket.socket | Note
    seconds: float


@types.coroutine
def in_task() -> Generator[None, None, None]:
    """Make this conversation a task from here on."""
    if _State.is_prompt:
        yield


async def is_readable(sock: socket.socket, seconds: float = MOMENT) -> bool:
    """Returns True when there is something to read; False after these seconds, or at once in a task."""
    return await _has_come(_Wish(sock, seconds))


async def notify(note: Note) -> None:
    """Wait until the function that `note` gets has been called."""
    if not await _has_come(_Wish(note, math.inf)):
        event = trio.Event()
        note(event.set)
        await event.wait()


class Bell:
    """Rings for the one conversation that waits for it, if any."""

    def __init__(self) -> None:
        self.ring: Callable[[], object] = _nobody

    async def rings_soon(self) -> bool:
        """Returns True when the bell rings; False after a moment, or at once in a task."""
        return await _has_come(_Wish(self._hang, MOMENT))

    async def rung(self) -> None:
        """Wait in a task until the bell rings."""
        event = trio.Event()
        self._hang(event.set)
        await event.wait()

    def _hang(self, ring: Callable[[], object]) -> None:
        self.ring = ring


def _nobody() -> None:
    """Do nothing: no conversation waits."""


@types.coroutine
def _has_come(wish: _Wish) -> Generator[_Wish, bool | None, bool]:
    return bool(_State.is_prompt and (yield wish))


@types.coroutine
def _rest(conversation: Conversation) -> Generator[Any, Any, None]:
    yield from conversation.__await__()


class _Waiting(NamedTuple):
    conversation: Conversation
    until: float  # by Trio's clock


class ShortConversations:
    def __init__(self, tasks: trio.Nursery) -> None:
        self._tasks = tasks
        self._waiting: dict[int, _Waiting] = {}  # by the number of the socket
        self._deadlines: dict[Conversation, float] = {}  # with the time until which each waits
        self._ready: deque[tuple[Conversation, bool | None]] = deque()
        self._sockets = select.epoll()
        self._some = trio.Event()
        self._is_over = False

    def begin(self, conversation: Conversation) -> None:
        """Run a conversation until it waits. Raises its errors until then."""
        self._go_on(conversation, None)

    def _go_on(self, conversation: Conversation, answer: bool | None) -> None:
        """Run conversations one after the other, as one may call back another."""
        self._ready.append((conversation, answer))
        if not _State.is_prompt:
            self._go_on_all()

    def _go_on_all(self) -> None:
        try:
            while self._ready:
                self._step(*self._ready.popleft())
        finally:
            if self._ready:  # one has raised an error, which must not stop the others
                self._go_on_all()

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
        else:
            self._wait(conversation, *awaited)

    def _wait(self, conversation: Conversation, awaited: socket.socket | Note, seconds: float) -> None:
        until = trio.current_time() + seconds
        if isinstance(awaited, socket.socket):
            self._sockets.register(awaited, select.EPOLLIN)
            self._waiting[awaited.fileno()] = _Waiting(conversation, until)
        else:
            self._deadlines[conversation] = until
            awaited(partial(self._tell, conversation))
        if until < math.inf:
            self._some.set()

    def _tell(self, conversation: Conversation) -> None:
        if self._deadlines.pop(conversation, None) is not None:
            self._go_on(conversation, True)

    def _become_task(self, conversation: Conversation) -> None:
        async def rest() -> None:
            await _rest(conversation)

        self._tasks.start_soon(rest)

    async def run(self) -> None:
        """Go on with waiting conversations, until cancelled. Then they become tasks, which are cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lose_patience)
                while True:
                    await trio.lowlevel.wait_readable(self._sockets.fileno())
                    for number, _ in self._sockets.poll(0):
                        self._go_on(self._take(number), True)
        finally:
            self._is_over = True
            for conversation in [*map(self._take, [*self._waiting]), *self._deadlines]:
                self._become_task(conversation)
            self._deadlines.clear()
            self._sockets.close()

    async def _lose_patience(self) -> None:
        while True:
            await self._some.wait()
            await trio.sleep(MOMENT)
            now = trio.current_time()
            for number in [number for number, wait in self._waiting.items() if wait.until <= now]:
                self._become_task(self._take(number))
            for conversation in [talk for talk, until in self._deadlines.items() if until <= now]:
                del self._deadlines[conversation]
                self._become_task(conversation)
            if not self._waiting and all(until == math.inf for until in self._deadlines.values()):
                self._some = trio.Event()

    def _take(self, number: int) -> Conversation:
        with suppress(OSError):
            self._sockets.unregister(number)
        return self._waiting.pop(number).conversation
