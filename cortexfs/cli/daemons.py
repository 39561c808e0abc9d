"""The daemon of a mount: its process, and the directories with which it was started.

    daemon = of(mount)      None if it cannot be found
    daemon.process.end(signal.SIGTERM, seconds)

Rules: nothing is believed that a daemon could have forged, neither its status nor its own command line. Root
uses the answer to send a signal, or to start another daemon with the same directories. The command line of
the daemon's starter (host/starter.py) is believed, as the starter is a separate process. The starter must
belong to the mount's owner, be a child of the daemon, and have the mount where its command line says. A pid
is signalled only through a pidfd. The memory and the program of another user's process may be in a file
system that never answers, so both are looked at through `bounded.ask`.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import stat
from typing import NamedTuple

from cortexfs.cli import bounded, mounts
from cortexfs.core import mountinfo
from cortexfs.core.mountinfo import Mount
from cortexfs.core.starter_command import STARTER, STARTER_NAME
from cortexfs.state.directories import Places, places

_UIDS = r"(?m)^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$"
_POWERS = r"(?m)^CapEff:\t0*[1-9a-f]"
_PARENT = r"(?m)^PPid:\t(\d+)$"
_SECONDS = 5.0  # for a look at one process


class PinnedProcess:
    """A process whose pid cannot pass to another process between two looks (pidfd_open(2))."""

    def __init__(self, pid: int) -> None:
        """Raises OSError if there is no such process."""
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self._pidfd)

    def send(self, number: signal.Signals) -> None:
        """Raises OSError if the process has ended, or is not ours to signal."""
        signal.pidfd_send_signal(self._pidfd, number)

    def end(self, number: signal.Signals, seconds: float) -> bool:
        """Send a signal. Returns True if the process is gone within `seconds`."""
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
            try:
                if found := _by(f"/proc/{name}", mount):
                    return found
            except TimeoutError:  # a process of the owner hangs: it may have as many as it likes
                return None
            except OSError:  # the process has ended, or is not ours
                pass
    return None


def places_of(options: argparse.Namespace) -> Places:
    """Returns the directories that a command with `parser.PLACES` works on."""
    return places_at(options.root, options.state, options.config)


def places_at(root: str | None, state: str | None = None, directory: str | None = None) -> Places:
    """Returns the named directories, by default those of the meant daemon, if it is ours (abi.md 8.12). A
    daemon would not notice changes in other directories."""
    if not {"CTX_STATE", "CTX_CONFIG"} & os.environ.keys():
        mount = mounts.meant(root)
        if mount and mount.owner == os.getuid() and (daemon := of(mount)):
            daemon.process.close()
            state, directory = state or daemon.state, directory or daemon.config
    return places(os.environ, os.getuid(), state=state, config=directory)


def _by(starter: str, mount: Mount) -> RunningDaemon | None:
    status = _read(f"{starter}/status")
    if not _may_be_of(mount.owner, status):  # before its memory is read, which other users could prevent
        return None
    words = os.fsdecode(bounded.ask(lambda: _words(starter), _SECONDS)).split("\0")
    options = dict(zip(words[6::2], words[7::2], strict=False))
    parent = int(re.findall(_PARENT, status)[0])
    if words[1:4] != STARTER or options.get("--daemon") != str(parent):
        return None
    place = (mount.connection, options.get("--root"))
    if place not in [
        (each.connection, each.point) for each in mountinfo.mounts(_read(f"{starter}/mountinfo"))
    ]:
        return None
    if not _runs_as(mount.owner, _read(f"/proc/{parent}/status")):  # root's child may be a user's
        return None
    process = PinnedProcess(parent)
    if re.findall(_PARENT, _read(f"{starter}/status")) == [str(parent)]:  # it lives, so the pid was its own
        groups = _read(f"/proc/{parent}/cgroup")
        return RunningDaemon(process, options.get("--state", ""), options.get("--config", ""), groups)
    process.close()
    return None


def _may_be_of(owner: int, status: str) -> bool:
    """Returns True if the process has a starter's name, and the owner of the mount started it. For root, the
    process must have capabilities: no process that a compromised daemon could start has any."""
    is_named = status.startswith(f"Name:\t{STARTER_NAME.decode()}\n")
    return is_named and _runs_as(owner, status) and bool(owner or re.search(_POWERS, status))


def _words(starter: str) -> bytes:
    """Returns the command line, or nothing for a setuid program, whose command line is another user's."""
    if os.stat(f"{starter}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID):
        return b""
    with open(f"{starter}/cmdline", "rb") as file:
        return file.read()


def _runs_as(owner: int, status: str) -> bool:
    return all(set(uids) == {str(owner)} for uids in re.findall(_UIDS, status))


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
