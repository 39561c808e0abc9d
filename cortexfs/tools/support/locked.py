"""A lock for a thread in which a cancellation may strike at any instruction.

    found = locked(lock, work)

Since Python 3.14, a cancellation may strike between the taking of a lock and the block of its `with`, and the
lock would stay taken for ever. The same holds between the two calls of a context manager.
This file must never know what a lock is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def locked(lock: threading.Lock, work: Callable[[], T], step: float = -1) -> T:
    """Returns the result of `work`, which runs with the lock taken. With a step, a cancellation also strikes
    a thread that waits for the lock, within `step` seconds."""
    flag = [False]
    try:
        while not flag[0]:
            flag[:] = map(lock.acquire, [True], [step])  # one C call, which no cancellation divides
        return work()
    finally:
        if flag[0]:  # no call before the release, so no cancellation either
            lock.release()
