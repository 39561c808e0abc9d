"""shell.exec: a command line in a shell of its own, and nothing of it left behind.

Rules: the command gets a session and so a process group of its own; whatever way the call ends, the
group is killed and the shell reaped. Nothing waits without a deadline, except for the caller to read.
The group's number is used only while the shell is not reaped, so it cannot have become another's.
Cleanup is written twice, as try and finally: a host raises its cancellation at any instruction, but
only once.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import chain, starmap
from typing import Annotated

from cortexfs.sdk import (
    ExecutionFailed,
    InvalidInput,
    ToolEffect,
    ToolEffectKind,
    ToolResult,
    ToolRuntime,
    tool,
)
from cortexfs.tools.paths import checked, opened, owned, shown, write_all

SHELL = "/bin/sh"
CHUNK = 64 << 10  # what a pipe holds
LINGER = 0.1  # seconds for output that background processes still write after the shell has ended
GRACE = 0.3  # seconds from SIGTERM to SIGKILL; a cancelled run must end within one
REAP = 5.0  # seconds to wait for a killed shell; longer only if the kernel holds it
MAX_CMD = (128 << 10) - 1  # MAX_ARG_STRLEN of execve(2), with the NUL
_DEFAULTS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_LIMITS = {resource.RLIMIT_DATA: "-d", resource.RLIMIT_AS: "-v"}


@tool(
    name="shell.exec",
    effects=[ToolEffect(ToolEffectKind.RUN_PROCESS)],
    description="""\
Run a command line with /bin/sh -c and return what it prints, standard output and standard error \
together in the order of writing, as it comes. Exit status 0 is success; any other is an error that says \
"exit status N" or "killed by signal N". Bytes that are not UTF-8 are replaced; 2>/dev/null drops the \
errors of a command, 2>&1 is not needed.
Each call is a new shell: directory and variables do not carry over, so join steps with && or use cwd. \
There is no terminal, and standard input is empty unless stdin is given: do not start editors, pagers or \
prompts. The whole call ends when the shell ends: background processes are killed, and so is everything \
when timeout_secs are over (ETIMEDOUT) or the call is cancelled (SIGTERM, and SIGKILL shortly after).
Use it to build, test and run programs, and for what no other tool does. Prefer fs.read, fs.list, \
fs.glob, fs.search, fs.write and fs.replace for files: their output is bounded and their changes are \
atomic.""",
)
def exec_(
    runtime: ToolRuntime,
    cmd: Annotated[str, "The command line, for /bin/sh."],
    cwd: Annotated[str | None, "The directory to run it in, in place of the caller's."] = None,
    timeout_secs: Annotated[float | None, "End it after so many seconds."] = None,
    stdin: Annotated[str | None, "What it reads as standard input."] = None,
    env: Annotated[dict[str, str] | None, "Environment variables to add or replace."] = None,
) -> ToolResult:
    if timeout_secs is not None and not timeout_secs > 0:
        raise InvalidInput(f"timeout_secs: it is {timeout_secs}, and must be more than 0")
    arguments = _arguments(cmd, cwd)
    environment = _environment(runtime.environ, env or {})
    job = _Job()
    runtime.on_cancel(job.wake)
    try:
        job.start(arguments, environment, stdin)
        job.follow(runtime, None if timeout_secs is None else time.monotonic() + timeout_secs)
    finally:
        try:
            job.end()
        finally:
            job.end()
    if not job.finished:
        raise ExecutionFailed(f"the command took longer than {timeout_secs:g} s and was ended", "ETIMEDOUT")
    return _result(job.status)


def _result(status: int) -> ToolResult:
    if status < 0:
        return ToolResult.error(f"killed by signal {-status}")
    return ToolResult.error(f"exit status {status}") if status else ToolResult.success("")


def _arguments(cmd: str, cwd: str | None) -> list[str]:
    """The shell's, behind a first step that moves and lifts the limits that are the host's own."""
    size = len(_encoded(cmd, "cmd"))
    if size > MAX_CMD:
        raise InvalidInput(f"cmd: it has {size} bytes, over {MAX_CMD}; write it to a file and run that")
    steps = []
    for limit, flag in _LIMITS.items():
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            steps.append(f"ulimit -S {flag} {'unlimited' if hard == resource.RLIM_INFINITY else hard >> 10}")
    if cwd is not None:
        os.stat(os.path.join(checked(cwd, "cwd"), "."))  # raises what would keep us out
        steps.append('cd -P -- "$2" || exit')
    if not steps:
        return [SHELL, "-c", cmd]
    # "./", so that neither CDPATH nor the meaning of "cd -" can interfere
    place = os.path.join(".", cwd or "")
    return [SHELL, "-c", "; ".join([*steps, 'exec "$0" -c "$1"']), SHELL, cmd, place]


def _environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    for name, value in added.items():
        if not name or "=" in name:
            raise InvalidInput(f"env: {shown(name)!r} is no name for a variable")
        _encoded(name + value, "env")
    return {**caller, **added}


def _encoded(text: str, name: str) -> bytes:
    if "\0" in text:
        raise InvalidInput(f"{name}: it holds a NUL character, which no program can be given")
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: it holds what is no Unicode character") from None


class _Job:
    """One shell and its process group."""

    def __init__(self) -> None:
        self.finished = False  # the shell ended by itself
        self.status = 0
        self._pids: list[int] = []
        self._waking = threading.Lock()
        self._waker = owned(os.eventfd, 0)
        # In one C call, as in `owned`.
        self._output, self._written = list(map(FileIO, chain.from_iterable(starmap(os.pipe, [()]))))

    def wake(self) -> None:
        """Called on cancel, from another thread, at any time."""
        with self._waking:
            if not self._waker.closed:
                os.eventfd_write(self._waker.fileno(), 1)

    def start(self, arguments: list[str], environment: dict[str, str], stdin: str | None) -> None:
        with _input(stdin) as source:
            actions = [
                (os.POSIX_SPAWN_DUP2, source.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, self._written.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, self._written.fileno(), 2),
            ]
            # Not subprocess, which leaves ignored and blocked signals as the host has them.
            spawn = partial(
                os.posix_spawn,
                SHELL,
                arguments,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_DEFAULTS,
            )
            # One C call, so that a cancellation cannot come between the process and its number.
            self._pids.extend(map(spawn, [environment]))
        self._written.close()

    def follow(self, runtime: ToolRuntime, deadline: float | None) -> None:
        """Pass output on until the shell has ended and its output is read, or time is over."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        with owned(os.pidfd_open, self._pids[0]) as process:
            poller = _poller(self._waker, self._output, process)
            more, drained = True, 0
            while True:
                ready = {fd for fd, _ in poller.poll(_milliseconds(deadline))}
                if self._waker.fileno() in ready:
                    raise ExecutionFailed("cancelled", "ECANCELED")
                if self._output.fileno() in ready:
                    data = os.read(self._output.fileno(), CHUNK)
                    drained += len(data)
                    if text := decode(data, not data):
                        runtime.emit(text)
                    if not data:
                        more = False
                        poller.unregister(self._output)
                if process.fileno() in ready:
                    self.finished, drained = True, 0
                    poller.unregister(process)
                    deadline = time.monotonic() + LINGER
                over = deadline is not None and time.monotonic() >= deadline
                # What the shell itself wrote is read to the end, however slow the reader: when it
                # ended, the pipe could hold no more than a chunk.
                read = not more or (over and (drained >= CHUNK or self._output.fileno() not in ready))
                if self.finished and read:
                    break
                if over and not self.finished:
                    return
            if text := decode(b"", True):
                runtime.emit(text)

    def end(self) -> None:
        """Leave no process and no descriptor. May be called again after an interruption."""
        with suppress(ProcessLookupError, ChildProcessError):  # it was reaped already
            while self._pids:
                self._reap(self._pids[0])
                self._pids.clear()
        with self._waking:
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
            _poller(process).poll(REAP * 1000)
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            self.status = os.waitstatus_to_exitcode(status)

    def _drain(self, process: FileIO, deadline: float) -> None:
        """Let the group clean up, until its output and the shell have ended."""
        waiting = {self._output.fileno(), process.fileno()}
        poller = _poller(self._output, process)
        while waiting and time.monotonic() < deadline:
            for fd, _ in poller.poll(_milliseconds(deadline)):
                if fd == process.fileno() or not os.read(fd, CHUNK):
                    waiting.remove(fd)
                    poller.unregister(fd)


def _input(text: str | None) -> FileIO:
    if text is None:
        return opened(os.devnull, os.O_RDONLY)
    # A file in memory and not a pipe: who does not read it blocks nobody.
    file = owned(os.memfd_create, "stdin")
    write_all(file, text.encode(errors="replace"))
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return file


def _poller(*files: FileIO) -> select.poll:
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    return poller


def _milliseconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(0, deadline - time.monotonic()) * 1000


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # what we may not signal is not ours to end
        os.killpg(group, number)
