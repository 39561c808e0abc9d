"""The daemon of a mount: which process it is, and with which directories it was started.

    daemon = of(mount)      None where it cannot be told
    daemon.process.end(signal.SIGTERM, seconds)

Rules: nothing is believed that a daemon could have made up, as root asks in order to send a signal, or to
start another one with the same directories: not its status, and not its own command line. Its starter tells
(host/starter.py), which hears the daemon and is none: a process of the mount's owner, in whose tree the mount
lies where its command line has it, and whose parent is the daemon. A pid is signalled only through a pidfd.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import stat
from contextlib import suppress
from typing import NamedTuple

from cortexfs.cli import mounts
from cortexfs.core import mountinfo
from cortexfs.core.errors import Fault
from cortexfs.core.mountinfo import Mount
from cortexfs.core.starter_command import STARTER
from cortexfs.state.directories import Places, places

_UIDS = r"(?m)^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$"
_POWERS = r"(?m)^CapEff:\t0*[1-9a-f]"
_PARENT = r"(?m)^PPid:\t(\d+)$"


class PinnedProcess:
    """A process that cannot turn into another one between two looks (pidfd_open(2))."""

    def __init__(self, pid: int) -> None:
        """Raises OSError where there is none."""
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self._pidfd)

    def send(self, number: signal.Signals) -> None:
        """Raises OSError where it has ended, or is not ours to signal."""
        signal.pidfd_send_signal(self._pidfd, number)

    def end(self, number: signal.Signals, seconds: float) -> bool:
        """Send a signal; returns whether the process is gone `seconds` later."""
        try:
            self.send(number)
        except ProcessLookupError:
            return True
        return self.is_gone(seconds)

    def is_gone(self, seconds: float) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])


class RunningDaemon(NamedTuple):
    process: PinnedProcess
    state: str
    config: str
    groups: str = ""  # its control groups, as the kernel has them


def of(mount: Mount) -> RunningDaemon | None:
    """Returns the daemon of the mount, if it is in this pid namespace and may be looked at."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):  # it has ended, or is not ours
                if found := _by(f"/proc/{name}", mount):
                    return found
    return None


def places_of(options: argparse.Namespace) -> Places:
    """The directories that a command with `parser.PLACES` works on."""
    return places_at(options.root, options.state, options.config)


def places_at(root: str | None, state: str | None = None, directory: str | None = None) -> Places:
    """Unless others are named, the directories of the daemon that is meant, if it is ours (abi.md 8.12). A
    daemon would not see another state."""
    if not {"CTX_STATE", "CTX_CONFIG"} & os.environ.keys():
        with suppress(Fault):
            mount = mounts.mounted_at(mounts.root(root))
            if mount and mount.owner == os.getuid() and (daemon := of(mount)):
                daemon.process.close()
                state, directory = state or daemon.state, directory or daemon.config
    return places(os.environ, os.getuid(), state=state, config=directory)


def _by(starter: str, mount: Mount) -> RunningDaemon | None:
    words = _read(f"{starter}/cmdline").split("\0")
    if words[1:4] != STARTER:
        return None
    said = dict(zip(words[6::2], words[7::2], strict=False))
    status = _read(f"{starter}/status")
    parent = int(re.findall(_PARENT, status)[0])
    if said.get("--daemon") != str(parent) or not _is_of(mount.owner, starter, status):
        return None
    there = (mount.connection, said.get("--root"))
    if there not in [
        (each.connection, each.point) for each in mountinfo.mounts(_read(f"{starter}/mountinfo"))
    ]:
        return None
    if not _runs_as(mount.owner, _read(f"/proc/{parent}/status")):  # a user's may have a parent of root's
        return None
    process = PinnedProcess(parent)
    if re.findall(_PARENT, _read(f"{starter}/status")) == [str(parent)]:  # it lives, so the pid was its own
        groups = _read(f"/proc/{parent}/cgroup")
        return RunningDaemon(process, said.get("--state", ""), said.get("--config", ""), groups)
    process.close()
    return None


def _is_of(owner: int, starter: str, status: str) -> bool:
    """Returns True if the owner of the mount started the process. Its own words are the starter's then: a
    setuid program has those of somebody else; and what a daemon of root that was taken over can have made
    has no powers."""
    if not _runs_as(owner, status) or not (owner or re.search(_POWERS, status)):
        return False
    return not os.stat(f"{starter}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID)


def _runs_as(owner: int, status: str) -> bool:
    return all(set(uids) == {str(owner)} for uids in re.findall(_UIDS, status))


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
