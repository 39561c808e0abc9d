"""The tasks of pyfuse3, each of which reads a request of the kernel and answers it.

Main path: `serve` is `pyfuse3.main`, whose tasks take turns by a lock of ours. pyfuse3 waits by functions of
its attribute `trio`, where it puts another module for asyncio; here it is Trio with three changes.

Rules: a task that has read a request keeps the turn while it answers, and reads on. The turn goes to another
task when the answer waits for anything, and at the end of a task. Requests that have come are read without a
turn of the loop, a few at a time, so that no caller keeps the loop to itself. Nothing is read where there is
nothing: a killed caller takes its request along, between the look for it and the read.
This file must never know what is in a request.
"""

from __future__ import annotations

import contextlib
import os
import select
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pyfuse3
import trio

AT_ONCE = 8  # requests, of which most take 40 µs


class _Turn:
    """The right to read, as a lock. It is free while its last owner answers, and wakes no other task then."""

    def __init__(self) -> None:
        self._is_free = True
        self._others = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        if not self._is_free:
            await self._others.park()
        self._is_free = False

    async def __aexit__(self, *_: object) -> None:
        self._is_free = True

    def pass_on(self) -> None:
        """Wake another task, as the last owner waits for something else than a request."""
        if self._is_free and self._others:
            self._is_free = False
            self._others.unpark()


class KernelRequests:
    def __init__(self) -> None:
        self._look = select.poll()
        self._budget = 0

    async def have_come(self, channel: int) -> None:
        """Wait for a request. The look for it comes last, as a read without a request costs a reader."""
        if not self._budget:
            os.set_blocking(channel, False)
            self._look.register(channel, select.POLLIN)  # the same channel each time
        while not (self._budget and self._look.poll(0)):
            await trio.lowlevel.wait_readable(channel)
            self._budget = AT_ONCE
        self._budget -= 1


class _Readers:
    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, read: Callable[..., Awaitable[None]], *arguments: object, name: str) -> None:
        self._nursery.start_soon(_reading, read, arguments, name=name)


async def _reading(read: Callable[..., Awaitable[None]], arguments: tuple[object, ...]) -> None:
    """Run a reader, again after a read without a request: pyfuse3 still counts a reader that it ends so."""
    try:
        while True:
            try:
                return await _passing_on(read(*arguments))
            except BlockingIOError:
                pass
    finally:
        _turn.pass_on()


@types.coroutine
def _passing_on(work: Awaitable[None]) -> Generator[Any, Any, None]:
    """Do this work, and pass the turn on whenever it waits. Trio throws nothing into a task that waits."""
    steps = work.__await__()
    heard = None
    with contextlib.suppress(StopIteration):
        while True:
            waits_for = steps.send(heard)
            _turn.pass_on()
            heard = yield waits_for


@contextlib.asynccontextmanager
async def _open_nursery() -> AsyncIterator[_Readers]:
    async with trio.open_nursery() as nursery:
        yield _Readers(nursery)


_turn = _Turn()


async def serve() -> None:
    """Answer the kernel until the mount has ended."""
    low = types.SimpleNamespace(**vars(trio.lowlevel))
    low.wait_readable = KernelRequests().have_come
    changed = types.SimpleNamespace(**vars(trio))
    changed.Lock, changed.open_nursery, changed.lowlevel = (lambda: _turn), _open_nursery, low
    vars(pyfuse3)["trio"] = changed
    await pyfuse3.main()
