"""Work in a thread for which the loop stands still, as long as that is quick.

trio.to_thread.run_sync takes a turn of the loop to begin and another one to end, and a thread that ends while
the loop is busy waits for it: 0.4 ms for a write of 0.02, which is felt where a delta is to be seen within a
millisecond. Here the loop waits for the thread, but for PROMPT at most, and not again for PAUSE when that was
not enough: a disk that is slow, or hangs, holds up who called and nobody else.

Rules: nothing here can be cancelled; who calls shields himself.
This file must never know what the work is.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import trio

PROMPT = 0.0005  # seconds
PAUSE = 0.1


class Prompt:
    """Where work of one kind is done, one piece at a time."""

    def __init__(self) -> None:
        self._waits_from = 0.0  # by Trio's clock

    async def run(self, work: Callable[[], None]) -> None:
        piece = _Piece()
        trio.lowlevel.start_thread_soon(work, piece.end)
        now = trio.current_time()
        patience = PROMPT if now >= self._waits_from else 0
        if not piece.comes_within(patience):
            if patience:
                self._waits_from = now + PAUSE
            await piece.ended.wait()
        piece.results[0].unwrap()


class _Piece:
    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._done, self._claim = Lock(), Lock()  # whoever has the claim first decides who tells of the end
        self._done.acquire()
        self.results: list[Any] = []  # outcome.Outcome
        self.ended = trio.Event()

    def end(self, result: Any) -> None:
        self.results.append(result)
        if self._claim.acquire(blocking=False):
            self._done.release()
        else:
            self._token.run_sync_soon(self.ended.set)

    def comes_within(self, seconds: float) -> bool:
        """Wait, and the loop with it; whether it has ended."""
        return self._done.acquire(timeout=seconds) or not self._claim.acquire(blocking=False)
