"""The start of an MCP server, which may download itself first: its time is not over while it makes progress.

Rules: progress shows in the processor time of a program's session, and in its output. A program without
progress for STALL_SECONDS, in which a network may keep it waiting, is given up. So is one that has not
greeted after MOST_SECONDS. A server that runs elsewhere has REMOTE_SECONDS.
This file must never know what a server says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import anyio

from cortexfs.core.hostcalls import NOBODY
from cortexfs.core.safe_text import KEPT_LAST, counted, last_words, one_line
from cortexfs.host.confine.limits import pids

STALL_SECONDS = 90.0  # npm waits for up to 60 before it tries again
REMOTE_SECONDS = 12.0
MOST_SECONDS = 900.0
LOOK_SECONDS = 0.25
LEAST = 0.005  # seconds of processor time: a ticking timer is no progress
MAX_LINE = 200


class ServerStart:
    """The start of one server. `leader` is its process, once there is one. `waits` means that another server
    starts first, and `is_over` that this one has greeted."""

    def __init__(self) -> None:
        self.leader = 0
        self.waits = False
        self.is_over = False
        self._size = 0
        self._last = b""
        self._missed = 0
        self._last_missed = b""

    def note_output(self, output: bytes) -> None:
        """Note output on its standard error."""
        self._size += len(output)
        self._last = (self._last + output)[-KEPT_LAST:]

    def missed(self, line: bytes) -> None:
        """Note a line on its standard output that is no message."""
        self._size += len(line)
        self._missed += 1
        self._last_missed = line[:MAX_LINE]

    def misses(self) -> str:
        """Returns the end of a sentence about such lines before its greeting; "" if there were none."""
        if self.is_over or not self._missed:
            return ""
        last = one_line(self._last_missed.decode(errors="replace"))
        return f"; it printed {counted(self._missed, 'line')} outside of the protocol, the last: {last}"

    @property
    def line(self) -> str:
        """The last line that it printed, for those that wait for it."""
        lines = self._last.decode(errors="replace").split("\n")
        return next((one_line(line)[:MAX_LINE] for line in reversed(lines) if line.strip()), "")

    async def stalled(self) -> str:
        """Returns the end of a sentence once the start makes no more progress; "" once it is over."""
        began = since = time.monotonic()
        before, size = self._work(), self._size
        while not self.is_over:
            await anyio.sleep(min(LOOK_SECONDS, STALL_SECONDS))
            now, work = time.monotonic(), self._work()
            if self.waits:
                began = now
            if abs(work - before) >= LEAST or self._size != size or self.waits:
                since, before, size = now, work, self._size
            elif self.leader and now - since > STALL_SECONDS:
                return f"did not complete the handshake, and was idle for {STALL_SECONDS:g} s{self._words()}"
            elif not self.leader and now - since > REMOTE_SECONDS:
                return f"did not complete the handshake within {REMOTE_SECONDS:g} s"
            if now - began > MOST_SECONDS:
                return f"did not complete the handshake within {MOST_SECONDS:g} s" + self._words()
        return ""

    def _words(self) -> str:
        return last_words(self._last) + self.misses()

    def _work(self) -> float:
        return sum(map(_processor_time, _session(self.leader))) if self.leader else 0.0


def as_whom() -> str:
    """Returns the part of a sentence that names the user of a start, if that may be why it failed."""
    is_nobody = os.geteuid() == NOBODY
    return " as nobody, who lists the tools of servers on a mount of root's" if is_nobody else ""


def _session(leader: int) -> Iterator[int]:
    """Yields the processes of a session; its leader alone if a view closes /proc."""
    yield leader
    with suppress(OSError):
        for pid in pids():
            with suppress(OSError):
                if pid != leader and os.getsid(pid) == leader:
                    yield pid


def _processor_time(pid: int) -> float:
    """Returns the time as clock_getcpuclockid(3) has it, which needs no /proc."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0
