"""Lets a thread that may outlive its process hold no lock and no socket of it.

Rules: a thread in an endless wait of the kernel cannot be killed, and what it has open stays open with it.
This file must never know what the thread waits for.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress

from cortexfs.linux import syscalls


def keep_only_mount() -> None:
    """Leave the process's table of descriptors, with the mount's alone and those that a filter protects."""
    if (mount := _mount()) is None:
        return
    with suppress(OSError):
        syscalls.unshare(syscalls.CLONE_FILES)
        close_all_but(mount)


def close_all_but(*descriptors: int) -> None:
    """Close all other descriptors of this thread's table. Without close_range(2), `closerange` tries each."""
    last, low = max(map(int, os.listdir("/proc/thread-self/fd"))), 0
    for high in (*sorted(descriptors), last + 1):
        if low < high:  # closerange(0, 0) closes all
            os.closerange(low, high)
        low = high + 1


@functools.cache
def _mount() -> int | None:
    """Returns the descriptor of this process's mount, which it has for as long as it serves."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                return int(name)
    return None
