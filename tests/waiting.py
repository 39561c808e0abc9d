"""How long tests wait for a condition at most, and how they poll for it.

Rules: the limit is long enough for a busy machine, so no test needs all of it. A test that reaches the
limit is shown the last value instead. This module must never know what a test waits for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

SOAK = float(os.environ.get("CTX_SOAK", "0"))  # duration of each attack in the long form
PATIENCE = 120 + SOAK
LOOK = 0.02

T = TypeVar("T")


def until(look: Callable[[], T], is_so: Callable[[T], object] = bool) -> T:
    """Poll `look` until `is_so` accepts its value, and return it. Past the limit, fail and show it."""
    end = time.monotonic() + PATIENCE
    while not is_so(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(LOOK)
    return seen


async def awaited(look: Callable[[], T], is_so: Callable[[T], object] = bool) -> T:
    """Like `until`, while the tasks of the test go on."""
    import trio  # imported here, as the parent of lanes runs no test

    end = time.monotonic() + PATIENCE
    while not is_so(seen := look()):
        assert time.monotonic() < end, seen
        await trio.sleep(LOOK / 20)
    return seen
