"""The memory that malloc(3) of glibc keeps, though nobody uses it.

Rules: where there is no mallopt(3), as in musl, nothing is done, and nothing is wrong.
This file must never know what the memory was for.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # <malloc.h>
# Pieces from this size on are mapped, and so are gone when they are free: more than is read at a time.
MAPPED = 512 << 10
SPARE = 1 << 20  # kept at the end of the heap
HEAPS = 2  # one a thread would be as many that are never full


def give_back() -> None:
    """Have freed memory leave this process. By itself malloc maps only ever larger pieces, up to 32 MiB, and
    what is free between those in use stays."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option, value in ((_TRIM_THRESHOLD, SPARE), (_MMAP_THRESHOLD, MAPPED), (_ARENA_MAX, HEAPS)):
        if mallopt:
            mallopt(option, value)
