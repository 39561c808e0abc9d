"""Whoever interrupts a command, or ends it, leaves nothing of it behind.

Rules: SIGTERM and SIGHUP put away what was begun, as an interrupt does, and say nothing either. A signal that
is ignored stays so.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn, TypeVar

Result = TypeVar("Result")
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def put_away() -> Iterator[None]:
    """Have them raise what ends a program."""
    ours = [each for each in _ENDING if signal.getsignal(each) == signal.SIG_DFL]
    for each in ours:
        signal.signal(each, lambda number, frame: _end(number))
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def run(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run it with trio. A signal cancels it, as an exception in the middle of trio would break that."""
    import trio  # for those who have begun it

    made: list[Result] = []
    told: list[int] = []
    heard = [each for each in (signal.SIGINT, *_ENDING) if signal.getsignal(each) != signal.SIG_IGN]

    async def main() -> None:
        with trio.open_signal_receiver(*heard) as numbers:
            async with trio.open_nursery() as nursery:

                async def listen() -> None:
                    told.append(await anext(numbers))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(listen)
                made.append(await work())
                nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        problem: BaseException = group
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        raise problem from None
    if told:
        _end(told[0])
    return made[0]
