"""Work in a thread whose end is acted upon at once.

trio.to_thread.run_sync takes a turn of the loop to begin, and its caller goes on a turn after the thread has
ended, which is felt where a delta is to be seen within a millisecond. Here the thread begins at once, and
what is to be done at its end is done before the caller goes on.

Rules: nothing here can be cancelled; who calls shields himself.
This file must never know what the work is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio


class Unwrapped(Protocol):
    """What a thread came to: outcome.Outcome."""

    def unwrap(self) -> None: ...


async def at_once(work: Callable[[], None], then: Callable[[], None]) -> None:
    """Do `work` in a thread and, unless it raises, `then` on this one."""
    token, ended = trio.lowlevel.current_trio_token(), trio.Event()
    errors: list[BaseException] = []

    def follow(result: Unwrapped) -> None:
        try:
            result.unwrap()
            then()
        except BaseException as error:  # it would end the loop; it is the caller's
            errors.append(error)
        ended.set()

    trio.lowlevel.start_thread_soon(work, lambda result: token.run_sync_soon(follow, result))
    await ended.wait()
    if errors:
        raise errors[0]
