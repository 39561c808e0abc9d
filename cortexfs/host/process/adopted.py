"""Orphans that a host has been given by the kernel, as it is their subreaper: they are reaped when they end.

    adopted = Adopted(epoll)        in the main thread, which is the only one that may use it
    adopted.reap()                  when `adopted.number` is ready

What a command has started goes to its host when the command ends first, as it does at a cancel. Nobody
else waits for it, and a zombie counts among the processes that a host may have.

Rules: the kernel gives orphans to the main thread, and a child of a tool belongs to the thread that has
started it. So the main thread reaps its own children alone, and takes no tool's status away.
This file must never know what a tool or a call is.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

_WNOTHREAD = 0x20000000  # waitpid(2): no children of other threads
_DRAINED = 4096


class Adopted:
    def __init__(self, poller: select.epoll) -> None:
        # Any thread may be the one that a signal strikes, and this one has to wake up for it.
        self.number, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        poller.register(self.number, select.EPOLLIN)

    def reap(self) -> None:
        """Reap those that have ended."""
        with suppress(BlockingIOError):
            os.read(self.number, _DRAINED)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG | _WNOTHREAD)[0]:
                pass


def _nothing(*_: object) -> None:
    pass
