"""A lock for a thread in which a cancellation may strike at any instruction.

    found = locked(lock, work)

Since Python 3.14 one may strike between the taking of a lock and the block of its `with`, which would hold it
for ever. It may strike between the two calls of a context manager, too, whose frames a traceback then keeps.
This file must never know what a lock is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def locked(lock: threading.Lock, work: Callable[[], T], step: float = -1) -> T:
    """Returns what `work` does while nobody else has the lock. With a step, a cancellation strikes also a
    thread that waits, within so many seconds."""
    taken = [False]
    try:
        while not taken[0]:
            taken[:] = map(lock.acquire, [True], [step])  # one C call: nothing strikes before it is noted
        return work()
    finally:
        if taken[0]:  # nothing strikes from here to the release, as nothing is called
            lock.release()
