"""Programs that a tool runs, each in a process group of its own that leaves nothing behind.

Rules: however the call ends, the group is killed and its first process reaped. Every wait has a deadline,
except that for the caller to read. The group's number is used only before that process is reaped, so it
belongs to no other group. Cleanup is written twice, as try and finally: a host raises its cancellation at any
instruction, but only once.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO

from cortexfs.sdk import ExecutionFailed
from cortexfs.tools.support.locked import locked
from cortexfs.tools.support.paths import opened, owned, pipe, write_all

CHUNK = 64 << 10  # the size of a pipe
LINGER = 0.1  # seconds for output that background processes still write after the first one has ended
GRACE = 0.3  # seconds from SIGTERM to SIGKILL; a cancelled run must end within one
REAP = 5.0  # seconds to wait for a killed process; longer only if the kernel holds it
_DEFAULTS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class Waker:
    """A file that any thread can make readable, to wake a thread that polls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.file = owned(os.eventfd, 0)

    def wake(self) -> None:
        locked(self._lock, self._woken)

    def _woken(self) -> None:
        if not self.file.closed:
            os.eventfd_write(self.file.fileno(), 1)

    def close(self) -> None:
        locked(self._lock, self.file.close)


def spawn(
    pids: list[int], words: Sequence[str], environment: Mapping[str, str], streams: Iterable[FileIO | int]
) -> None:
    """Start a program in a session of its own. `streams` are its standard input, output and error. Its pid is
    added to `pids`."""
    numbers = (each if isinstance(each, int) else each.fileno() for each in streams)
    # Not by subprocess, which passes on the host's ignored and blocked signals.
    program = partial(
        os.posix_spawn,
        words[0],
        [*words],
        file_actions=[(os.POSIX_SPAWN_DUP2, number, at) for at, number in enumerate(numbers)],
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULTS,
    )
    # One C call: no cancellation comes between the start and the noting of the pid.
    pids.extend(map(program, [environment]))


class Job:
    """One program and its process group."""

    def __init__(self) -> None:
        self.finished = False  # True if it ended by itself
        self.status = 0
        self._pids: list[int] = []
        self._waker = Waker()
        self.wake = self._waker.wake  # called on cancel
        self._output, self._written = pipe()

    def run(
        self,
        arguments: list[str],
        environment: dict[str, str],
        emit: Callable[[str], None],
        stdin: str | None = None,
        *,
        errors: FileIO | None = None,
        deadline: float | None = None,
    ) -> None:
        """Run the program and pass its output on, until it ends or until the deadline. Standard error goes to
        `errors`, or with the output if there is none."""
        try:
            with _input(stdin) as source:
                spawn(self._pids, arguments, environment, (source, self._written, errors or self._written))
            self._written.close()
            self._follow(emit, deadline)
        finally:
            try:
                self._end()
            finally:
                self._end()

    def _follow(self, emit: Callable[[str], None], deadline: float | None) -> None:
        """Pass output on until the program has ended and its output is read, or until the deadline."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        with owned(os.pidfd_open, self._pids[0]) as process:
            poller = polled(self._waker.file, self._output, process)
            more, drained = True, 0
            while True:
                ready = {fd for fd, _ in poller.poll(_milliseconds(deadline))}
                if self._waker.file.fileno() in ready:
                    raise ExecutionFailed("cancelled", "ECANCELED")
                if self._output.fileno() in ready:
                    data = os.read(self._output.fileno(), CHUNK)
                    drained += len(data)
                    if text := decode(data, not data):
                        emit(text)
                    if not data:
                        more = False
                        poller.unregister(self._output)
                if process.fileno() in ready:
                    self.finished, drained = True, 0
                    poller.unregister(process)
                    deadline = time.monotonic() + LINGER
                over = deadline is not None and time.monotonic() >= deadline
                # The program's own output is read to the end, however slow the reader: at its end, the pipe
                # held at most a chunk.
                read = not more or (over and (drained >= CHUNK or self._output.fileno() not in ready))
                if self.finished and read:
                    break
                if over and not self.finished:
                    return
            if text := decode(b"", True):
                emit(text)

    def _end(self) -> None:
        """Leave no process and no descriptor. May be called again after an interruption."""
        with suppress(ProcessLookupError, ChildProcessError):  # reaped before
            while self._pids:
                self._reap(self._pids[0])
                self._pids.clear()
        self._waker.close()
        self._output.close()
        self._written.close()

    def _reap(self, pid: int) -> None:
        with owned(os.pidfd_open, pid) as process:
            if not self.finished:
                _signal(pid, signal.SIGTERM)
                _signal(pid, signal.SIGCONT)
                self._drain(process, time.monotonic() + GRACE)
            _signal(pid, signal.SIGKILL)
            polled(process).poll(REAP * 1000)
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            self.status = os.waitstatus_to_exitcode(status)

    def _drain(self, process: FileIO, deadline: float) -> None:
        """Give the group time to clean up, until the program has ended and its output is closed."""
        waiting = {self._output.fileno(), process.fileno()}
        poller = polled(self._output, process)
        while waiting and time.monotonic() < deadline:
            for fd, _ in poller.poll(_milliseconds(deadline)):
                if fd == process.fileno() or not os.read(fd, CHUNK):
                    waiting.remove(fd)
                    poller.unregister(fd)


def _input(text: str | None) -> FileIO:
    if text is None:
        return opened(os.devnull, os.O_RDONLY)
    # A file in memory and not a pipe: a program that does not read it blocks nobody.
    file = owned(os.memfd_create, "stdin")
    write_all(file, text.encode(errors="replace"))
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return file


def polled(*files: FileIO) -> select.poll:
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    return poller


def _milliseconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(0, deadline - time.monotonic()) * 1000


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # a process of another user stays
        os.killpg(group, number)
