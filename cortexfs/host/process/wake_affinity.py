"""Wake a process on the core of who wakes it and waits: another core may take longer to wake than a call.

Rules: nobody stays bound. The process is bound while it is woken; threads that it starts meanwhile inherit
that, and are freed afterwards. Programs could not be, so it must be one that starts none.
Whatever the kernel refuses, it is woken where the kernel likes.
This file must never know what it is woken for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from cortexfs.linux import syscalls


class OneCore:
    """For one process; not `is_used`, the kernel chooses: an idle core where there is one."""

    def __init__(self, is_used: bool = True) -> None:
        self._every = os.sched_getaffinity(0)
        self._is_used = is_used and len(self._every) > 1
        self._threads = 0  # of the process, when all were free

    def wake(self, pid: int, does: Callable[[], object]) -> None:
        """Do this, which wakes it. One at a time."""
        if not self._is_used:
            does()
            return
        bind(pid, {syscalls.core()})
        try:
            does()
        finally:
            bind(pid, self._every)
            tasks = f"/proc/{pid}/task"
            try:
                threads = os.stat(tasks).st_nlink
                if threads != self._threads:
                    for each in os.listdir(tasks):
                        bind(int(each), self._every)
                    self._threads = threads
            except OSError:  # nobody could tell who is bound: not again
                self._is_used = False


def bind(thread: int, cores: set[int]) -> None:
    with suppress(OSError):  # it has ended, or the machine has fewer cores now
        os.sched_setaffinity(thread, cores)
