"""The remains of a daemon whose fork server was killed with it, found and ended at the next start.

A host ends with its fork server, and what it started ends by its cgroup. Where there is none, a process in a
session of its own outlives them. Each confined host has an empty file system over the daemon's state
directory, which no descendant can take away: by that mark its processes are known. One daemon at a time has
the state, so what has the mark when a fork server starts is of a daemon that is gone.

This file must never know what a host does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cortexfs.host.confine import limits
from cortexfs.linux import syscalls

_NAME = "cortexfs-host"  # of the file system that is the mark, where mountinfo has the device's
_ELSEWHERE = "/proc/fs"  # where the mark lies if the caller cannot get to the state directory
_ROUNDS = 200  # what is born while others are killed is killed in the next


def name_of(state: str) -> str:
    """Returns what the mark of this state directory is called: the same path may be another one elsewhere."""
    seen = os.stat(state)
    return f"{_NAME}-{seen.st_dev}-{seen.st_ino}"


def mark(state: str, name: str) -> None:
    """Mark this process, which has mounts of its own, and hide the state directory from it."""
    for place in (state, _ELSEWHERE):
        with suppress(OSError):  # in a caller's root directory, or below a closed one
            syscalls.cover(place, name)
            return


def end(name: str) -> None:
    for _ in range(_ROUNDS):
        found = list(_marked(name))
        if not found:
            return
        for pid in found:
            _kill(pid, name)
        time.sleep(limits.KILLING_SECONDS)


def _marked(name: str) -> Iterator[int]:
    """Yields those that have it, and looks once at what many processes share."""
    known: dict[str, bool] = {os.readlink("/proc/self/ns/mnt"): False}
    for pid in limits.pids():
        with suppress(OSError):  # it has ended
            space = _space(pid)
            if known[space] if space in known else known.setdefault(space, _has_mark(pid, name)):
                yield pid


def _space(pid: int) -> str:
    """Returns what tells its mount namespace from others: of a process that hides it, the process itself."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except PermissionError:
        return str(pid)


def _has_mark(pid: int, name: str) -> bool:
    table = Path(f"/proc/{pid}/mountinfo").read_bytes()
    return any(line.split()[-2] == name.encode() for line in table.splitlines())


def _kill(pid: int, name: str) -> None:
    with suppress(OSError):  # it has ended, and of what has, there is no table
        pidfd = os.pidfd_open(pid)
        try:
            if _has_mark(pid, name):  # it still is that process
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
