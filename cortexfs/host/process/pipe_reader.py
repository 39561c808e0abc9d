"""The pipes of a process that answers calls. Its output is read by a waiting call, or, while no call waits,
by the process's own thread.

A call that reads for itself spares two wake-ups: of the thread, and of the call by the thread.

Rules: one reader at a time. The reader also sorts lines for other calls, so it must not be interrupted
meanwhile: a call leads in `runtime.shielded`. Everything else wakes the leading call by a `nudge`. Standard
error is no part of an answer: it goes to the daemon's log, and the last of it is kept.
This file must never know what is said.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from typing import Generic, TypeVar

from cortexfs import sdk
from cortexfs.core.safe_text import KEPT_LAST, last_words
from cortexfs.tools.support.process_groups import Waker

CHUNK = 64 << 10  # the capacity of a pipe
Item = TypeVar("Item")


class LeadingCall(Generic[Item]):
    """A call that waits for items, and may read meanwhile. `nudge` has it look if it still waits."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self.id = 0
        self.items: queue.SimpleQueue[Item | sdk.ExecutionFailed] = queue.SimpleQueue()
        self._nudge = nudge

    def waits(self) -> bool:
        return self.items.empty()

    def tell(self, item: Item | sdk.ExecutionFailed) -> None:
        """Called by a thread that does not read for this call, at any time."""
        self.items.put(item)
        self._nudge()

    def cancel(self) -> None:
        self.tell(sdk.ExecutionFailed("cancelled", "ECANCELED"))


class Leading:
    """`look` is the epoll of the process's own thread; the file is in it. `read` reads once, and returns True
    if there may be more."""

    def __init__(self, file: FileIO, look: select.epoll, read: Callable[[], bool]) -> None:
        self._file = file
        self._look = look
        self._read = read
        self._reading = threading.Lock()
        self._is_over = False
        self._nudges = Waker()
        self._nudged = self._nudges.file
        self.nudge = self._nudges.wake  # has the leading call check if it still waits
        self._leader = select.poll()
        self._leader.register(file, select.POLLIN)
        self._leader.register(self._nudged, select.POLLIN)

    def lead(
        self, waits: Callable[[], bool], until: float, begin: Callable[[], object] = lambda: None
    ) -> None:
        """Read until this call waits no more, unless there is a reader. `begin` sends the call's request."""
        if self._is_over or not self._reading.acquire(blocking=False):
            begin()
            return
        try:
            self._look.modify(self._file, 0)
            begin()
            while waits() and not self._is_over and (seconds := until - time.monotonic()) > 0:
                ready = {number for number, _ in self._leader.poll(seconds * 1000)}
                if self._nudged.fileno() in ready:
                    os.eventfd_read(self._nudged.fileno())
                if self._file.fileno() in ready and not self._read():
                    break
        finally:
            self._look.modify(self._file, select.EPOLLIN)  # first, or it would undo the next leader's change
            self._reading.release()

    def turn(self) -> None:
        """Called by the process's thread when there is output to read."""
        if self._reading.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._reading.release()

    def stop(self) -> None:
        """Let no call read from now on. Called by the process's thread; may be repeated."""
        if not self._is_over:
            self._is_over = True
            self.nudge()
            self._reading.acquire()
            self._nudges.close()


class Errors:
    """The standard error of a child: our end of its pipe, which does not block."""

    def __init__(self, file: FileIO, hear: Callable[[bytes], object] = lambda output: None) -> None:
        self.file = file
        self._hear = hear
        self._last = b""

    def pass_on(self) -> bool:
        """Pass the output on to our standard error. Returns False when there is no more."""
        output = self.file.read(CHUNK)
        if output:
            os.write(2, output)
            self._hear(output)
            self._last = (self._last + output)[-KEPT_LAST:]
        return output != b""

    def end(self) -> str:
        """Returns the end of the sentence that says that the child has ended."""
        self.pass_on()
        return last_words(self._last)


class ChildLines:
    """The output of a process, as whole lines. The reader checks by `held` that no line becomes too long."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held(self) -> int:
        """Returns the number of bytes of the unfinished line."""
        return len(self._rest)

    def ended_by(self, data: bytes) -> Iterator[bytes]:
        """Yields the lines that `data` completes."""
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield bytes(self._rest) + line if self._rest else line
            self._rest.clear()
        self._rest += rest


class Outbox:
    """Lines to a process. Those that wait are dropped once it does not read any more, as its output shows
    that it ends."""

    def __init__(self, pipe: FileIO) -> None:
        self._pipe = pipe
        self.waiting = bytearray()

    def put(self, line: bytes) -> bool:
        """Returns True if the pipe took the line at once. Otherwise it waits for `write`."""
        with suppress(OSError, ValueError):
            # The pipe takes so short a line whole or not at all: a cancellation may strike after it.
            if not self.waiting and len(line) <= select.PIPE_BUF:
                os.write(self._pipe.fileno(), line)
                return True
        self.waiting += line
        return False

    def write(self) -> bool:
        """Write as much as the pipe takes now. Returns True if nothing waits any more."""
        try:
            while self.waiting:
                del self.waiting[: os.write(self._pipe.fileno(), self.waiting[:CHUNK])]
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            self.waiting.clear()
        return True
