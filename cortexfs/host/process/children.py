"""Processes that a host starts for its plugin, and how it ends them and all their descendants.

Rules: a child leads a session and so a process group of its own. The group is killed whole before its leader
is reaped, so that its number cannot have been reused. A process that left the group becomes the host's child
when its parent ends, as the host is a subreaper. It is killed as soon as no running child could be its
origin. In a process that is no subreaper, unknown children are left alone: other code started them and awaits
their status. Cleanup may be repeated: a host raises its cancellation at any instruction, but only once.
This file must never know what a tool or a request is.
"""

from __future__ import annotations

import os
import pwd
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path

from cortexfs.linux import syscalls
from cortexfs.tools.support.locked import locked
from cortexfs.tools.support.paths import owned, pipe
from cortexfs.tools.support.process_groups import REAP, polled, spawn

_SHELL = "/bin/sh"
_ROUNDS = 100  # of killing strays; each ends one generation of processes that fork and exit
_PAUSE = 0.002

_lock = threading.Lock()
_leaders: set[int] = set()


class ChildProcess:
    """One process and our ends of its pipes; none of our ends blocks."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self.status = 0  # set once it was reaped, as os.waitstatus_to_exitcode
        self.process: FileIO | None = None  # its pidfd
        self._their_input, self.stdin = pipe()
        self.stdout, self._their_output = pipe()
        self.stderr, self._their_errors = pipe()
        for end in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(end.fileno(), False)

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> FileIO:
        """Start the process in this thread's working directory. Returns its pidfd."""
        streams = (self._their_input, self._their_output, self._their_errors)
        locked(_lock, partial(self._spawn_locked, argv, environment, streams))
        for end in streams:
            end.close()
        self.process = owned(os.pidfd_open, self._pids[0])
        return self.process

    def _spawn_locked(
        self, argv: Sequence[str], environment: Mapping[str, str], streams: Iterable[FileIO]
    ) -> None:
        _keep_to_ourselves()
        spawn(self._pids, argv, environment, streams)
        _leaders.update(self._pids)

    @property
    def pid(self) -> int:
        """Valid once the process was started."""
        return self._pids[0]

    def ends_within(self, seconds: float) -> bool:
        assert self.process is not None
        return bool(polled(self.process).poll(seconds * 1000))

    def kill(self) -> None:
        """Kill its whole group; only before `end`."""
        for pid in self._pids:
            with suppress(ProcessLookupError, PermissionError):  # what we may not signal is not ours to end
                os.killpg(pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave no process and no descriptor. May be called again after an interruption."""
        while self._pids:
            with suppress(ProcessLookupError, ChildProcessError):  # it was reaped already
                self._reap(self._pids[0])
            _leaders.discard(self._pids[0])
            self._pids.clear()
        every = (self.stdin, self.stdout, self.stderr, self.process)
        for file in (*every, self._their_input, self._their_output, self._their_errors):
            if file is not None:
                file.close()
        _sweep()

    def _reap(self, pid: int) -> None:
        self.kill()
        if self.process is None:
            self.process = owned(os.pidfd_open, pid)
        polled(self.process).poll(REAP * 1000)
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            self.status = os.waitstatus_to_exitcode(status)


def limited(argv: Sequence[str], memory_bytes: int | None, cpu_seconds: int | None) -> Sequence[str]:
    """Returns the command behind a shell that sets the limits before the command begins.

    As upstream's, the limits are hard and soft (RLIMIT_AS, RLIMIT_CPU).
    """
    steps = []
    for kind, flag, value, unit in (
        (resource.RLIMIT_AS, "-v", memory_bytes, 1 << 10),
        (resource.RLIMIT_CPU, "-t", cpu_seconds, 1),
    ):
        hard = resource.getrlimit(kind)[1]
        if value is not None:
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            steps.append(f"ulimit {flag} {value // unit} || exit")
    return [_SHELL, "-c", "; ".join([*steps, 'exec "$0" "$@"']), *argv] if steps else argv


def _keep_to_ourselves() -> None:
    """Pass on no descriptor but the three standard ones: a plugin's code may have opened inheritable ones."""
    with suppress(OSError):  # before Linux 5.11: one by one
        syscalls.close_on_exec(3)
        return
    try:
        numbers: Iterable[int] = map(int, os.listdir("/proc/self/fd"))
    except OSError:  # a root directory without /proc
        numbers = range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for number in numbers:
        with suppress(OSError):  # the listing's own descriptor is closed by now
            if number > 2 and os.get_inheritable(number):
                os.set_inheritable(number, False)


def _swept() -> bool:
    """Returns True if more strays may have come meanwhile."""
    if not _has_children() or not syscalls.is_subreaper():
        return False
    strays = _children() - _leaders
    alone = not _leaders
    for pid in strays:
        if alone:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return alone


def _sweep() -> None:
    """Reap the processes that ended children left. Kill them if no running child could be their origin."""
    for _ in range(_ROUNDS):
        if not locked(_lock, _swept):
            return
        time.sleep(_PAUSE)
    # The fork server ends processes that fork faster than this, with all of this host.
    print("a tool's processes could not be ended one by one; their host ends", file=sys.stderr)
    os._exit(os.EX_SOFTWARE)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def variables_of_user() -> dict[str, str]:
    """Returns the variables that login(1) would set; none if the system does not know the user."""
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {}
    return {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
