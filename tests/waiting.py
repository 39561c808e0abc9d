"""How long a test waits in vain, and how it looks for what nobody tells it.

Rules: no test needs the time that it is given, which is long enough for a machine that does much else;
whoever waits in vain is shown what was there instead. It must never know what a test waits for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import trio

SOAK = float(os.environ.get("CTX_SOAK", "0"))  # seconds that each attack goes on in the long form
PATIENCE = 120 + SOAK
LOOK = 0.02

T = TypeVar("T")


def until(look: Callable[[], T], is_so: Callable[[T], object] = bool) -> T:
    """Look until it is so, and say what was seen then."""
    end = time.monotonic() + PATIENCE
    while not is_so(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(LOOK)
    return seen


async def awaited(look: Callable[[], T], is_so: Callable[[T], object] = bool) -> T:
    """The same, while the tasks of the test go on."""
    end = time.monotonic() + PATIENCE
    while not is_so(seen := look()):
        assert time.monotonic() < end, seen
        await trio.sleep(LOOK / 20)
    return seen
