"""Processes of a daemon whose fork server was killed with it: the next start finds and ends them.

A host ends with its fork server, and its cgroup ends all that it started. Without a cgroup, a process in a
session of its own outlives them. Each confined host has an empty file system over the daemon's state
directory, which no descendant can take away: this is the mark of its processes. One daemon at a time has the
state, so processes with the mark belong to an ended daemon when a fork server starts.

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

_NAME = "cortexfs-host"  # the mark's file system has it where mountinfo has the device
_ELSEWHERE = "/proc/fs"  # the mark's place if the caller cannot get to the state directory
_ROUNDS = 200  # processes born during one round are killed in the next


def name_of(state: str) -> str:
    """Returns the mark's name for this state directory: the same path may be another directory elsewhere."""
    status = os.stat(state)
    return f"{_NAME}-{status.st_dev}-{status.st_ino}"


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
    """Yields the marked processes. Reads only once the mounts that many processes share."""
    known: dict[str, bool] = {os.readlink("/proc/self/ns/mnt"): False}
    for pid in limits.pids():
        with suppress(OSError):  # it has ended
            space = _space(pid)
            if known[space] if space in known else known.setdefault(space, _has_mark(pid, name)):
                yield pid


def _space(pid: int) -> str:
    """Returns the name of its mount namespace, or its pid if the namespace is hidden."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except PermissionError:
        return str(pid)


def _has_mark(pid: int, name: str) -> bool:
    table = Path(f"/proc/{pid}/mountinfo").read_bytes()
    return any(line.split()[-2] == name.encode() for line in table.splitlines())


def _kill(pid: int, name: str) -> None:
    with suppress(OSError):  # it has ended, and an ended process has no table
        pidfd = os.pidfd_open(pid)
        try:
            if _has_mark(pid, name):  # it still is that process
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
