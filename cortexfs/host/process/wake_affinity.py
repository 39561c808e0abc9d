"""Wake a process on the core of its waker, which then waits: waking another core may outlast a call.

Rules: no process stays bound. The process is bound while it is woken; threads that it starts meanwhile
inherit that, and are freed afterwards. Programs that it starts could not be freed, so it must start none. If
the kernel refuses to bind it, it is woken on the kernel's choice of core.
This file must never know what it is woken for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from cortexfs.linux import syscalls


class OneCore:
    """Wakes one process. Without `is_used` the kernel chooses the core: an idle one if there is one."""

    def __init__(self, is_used: bool = True) -> None:
        self._every = os.sched_getaffinity(0)
        self._is_used = is_used and len(self._every) > 1
        self._threads = 0  # of the process, when all were free

    def wake(self, pid: int, does: Callable[[], object]) -> None:
        """Call `does`, which wakes the process. Not for use by two threads at once."""
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
            except OSError:  # the bound threads cannot be found: bind no more
                self._is_used = False


def bind(thread: int, cores: set[int]) -> None:
    with suppress(OSError):  # the thread has ended, or the machine has fewer cores now
        os.sched_setaffinity(thread, cores)
