"""Descriptors and threads that calls leave behind in a process, and if it can still take more calls.

Rules: those that the process has when its tools are loaded do not count. A few more are allowed, for caches
and kept threads, and some for each other running call. A look costs some µs, so it is taken at some calls
only, and if the caller has a reason.
This file must never know what a call is, nor what becomes of the process.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

EACH = 8  # calls between two looks
DESCRIPTORS, THREADS = 128, 64  # more than at first
BESIDE = 16  # more for each other running call


class Held(NamedTuple):
    descriptors: int
    threads: int

    @staticmethod
    def by(process: int | str) -> Held | None:
        """Returns None if they cannot be counted: the process has ended, or Linux is older than 6.2."""
        try:
            descriptors = os.stat(f"/proc/{process}/fd").st_size
            return Held(descriptors, os.stat(f"/proc/{process}/task").st_nlink - 2) if descriptors else None
        except OSError:
            return None


class Wear:
    """The wear of this process, or of a child."""

    def __init__(self, process: int | str = "self") -> None:
        self._process = process
        self._first = Held.by(process)
        self._calls = 0
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - (self._first.descriptors if self._first else 0)
        self._most = min(DESCRIPTORS, room // 2)

    def is_worn(self, beside: int, is_doubtful: bool = False) -> bool:
        """Called after a call, with the number of other running calls. `is_doubtful` is a reason to look."""
        self._calls += 1
        if self._calls % EACH and not is_doubtful:
            return False
        first, now, more = self._first, Held.by(self._process), BESIDE * beside
        if first is None or now is None:
            return False
        is_full = now.descriptors > first.descriptors + self._most + more
        return is_full or now.threads > first.threads + THREADS + more
