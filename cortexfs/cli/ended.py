"""Leaves nothing behind of a command that is interrupted or ended.

Rules: SIGTERM and SIGHUP clean up what was begun, as an interrupt does, and print nothing either. A signal
that is ignored stays ignored.
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
    """Have SIGTERM and SIGHUP raise SystemExit."""
    signals = [each for each in _ENDING if signal.getsignal(each) == signal.SIG_DFL]
    for each in signals:
        signal.signal(each, lambda number, frame: _end(number))
    try:
        yield
    finally:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def run(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run `work` with trio. A signal cancels it, as an exception in the middle of trio would break trio."""
    import trio  # a slow import

    results: list[Result] = []
    received: list[int] = []
    signals = [each for each in (signal.SIGINT, *_ENDING) if signal.getsignal(each) != signal.SIG_IGN]

    async def main() -> None:
        with trio.open_signal_receiver(*signals) as numbers:
            async with trio.open_nursery() as nursery:

                async def listen() -> None:
                    received.append(await anext(numbers))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(listen)
                results.append(await work())
                nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    except BaseExceptionGroup as group:  # trio's, around the one problem; it is raised again below
        problem: BaseException = group
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        raise problem from None
    if received:
        _end(received[0])
    return results[0]
