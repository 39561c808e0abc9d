"""What is left of a daemon whose fork server was killed with it, found and ended at the next start.

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

from cortexfs.core.mountinfo import escaped
from cortexfs.host import limits, linux

NAME = "cortexfs-host"  # of the file system that is the mark, where mountinfo has the device's
_ROUNDS = 200  # what is born while others are killed is killed in the next


def mark(state: str) -> None:
    """Mark this process, which has mounts of its own, and hide the state directory from it."""
    with suppress(
        FileNotFoundError, PermissionError
    ):  # in a caller's root directory, or closed to the caller
        linux.cover(state, NAME)


def end(state: str) -> None:
    """Kill all that has the mark of this state directory."""
    for _ in range(_ROUNDS):
        found = list(_marked(state))
        if not found:
            return
        for pid in found:
            _kill(pid, state)
        time.sleep(limits.KILLING_SECONDS)


def _marked(state: str) -> Iterator[int]:
    own = os.readlink("/proc/self/ns/mnt")
    for pid in limits.pids():
        with suppress(OSError):  # it has ended, or is another user's
            if os.readlink(f"/proc/{pid}/ns/mnt") != own and _has_mark(pid, state):
                yield pid


def _has_mark(pid: int, state: str) -> bool:
    point = escaped(state)
    lines = map(bytes.split, Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines())
    return any(fields[4] == point and fields[-2] == NAME.encode() for fields in lines)


def _kill(pid: int, state: str) -> None:
    with suppress(ProcessLookupError, PermissionError, FileNotFoundError):
        pidfd = os.pidfd_open(pid)
        try:
            if _has_mark(pid, state):  # it still is that process
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
