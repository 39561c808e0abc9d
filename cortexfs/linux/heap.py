"""The unused memory that malloc(3) of glibc keeps in the process.

Rules: a C library without mallopt(3), such as musl, is left as it is.
This file must never know what the memory was for.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # <malloc.h>
# Blocks from this size on are mapped, so free(3) returns them to the kernel. No single read is as large.
MAPPED = 512 << 10
SPARE = 1 << 20  # kept at the end of the heap
HEAPS = 2  # not one for each thread, each of them partly empty


def give_back() -> None:
    """Have malloc return freed memory to the kernel. By default, malloc raises its mapping threshold up to
    32 MiB, and free memory between used blocks stays."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option, value in ((_TRIM_THRESHOLD, SPARE), (_MMAP_THRESHOLD, MAPPED), (_ARENA_MAX, HEAPS)):
        if mallopt:
            mallopt(option, value)
