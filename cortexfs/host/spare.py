"""A process that is forked before the next host is wanted, and waits in that host's cgroup.

To let a process into a cgroup, the kernel may wait until every processor has passed a quiet moment: 5 to
14 ms, for which a user's first call of each plugin had waited. So the fork server makes a host ahead of time,
when it has nothing else to do.

Rules: it holds nothing of the fork server's but a channel, does nothing until it is told which host
it is, and ends with the fork server. Which number the next host has is a guess; where that is wrong, or the
spare is gone, the host is forked as any other.
This file must never know what a call or a tool is.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cortexfs.core import hostcalls
from cortexfs.host import start
from cortexfs.host.confine.limits import Group, Groups
from cortexfs.host.warm import Begin
from cortexfs.linux import syscalls

# In which nothing is asked of the fork server: a host that has just begun needs the cores.
QUIET_SECONDS = 0.1
_MAX_RIGHTS = 4  # a host's control socket, what it prints to, a pidfd, a root
_STRICTEST = 1  # processes, until the host's own limit is known

_pack = msgspec.msgpack.Encoder().encode
_spawns: msgspec.msgpack.Decoder[hostcalls.Spawn] = msgspec.msgpack.Decoder(hostcalls.Spawn)


class BegunHost(NamedTuple):
    pid: int
    status: socket.socket  # what it reports on
    group: Group


class Spare:
    """It, as the fork server sees it."""

    def __init__(self, begin: Begin, groups: Groups | None) -> None:
        self._begin = begin
        self._groups = groups
        self._number = 0  # of the host that it is for
        self._channel: socket.socket | None = None
        self._group: Group | None = None
        self.pid = 0  # none waits
        self._next = 1

    @property
    def is_wanted(self) -> bool:
        return self._groups is not None and self._number != self._next

    def make(self) -> None:
        """Fork it. Where that is not possible, the next host is forked as any other."""
        assert self._groups is not None
        self.end()
        self._number = self._next
        with suppress(OSError):
            self._group = self._groups.create(self._number, _STRICTEST)
            wait = functools.partial(_wait, begin=self._begin, group=self._group)
            self._channel, self.pid = start.helper(wait)
            self._channel.setblocking(False)

    def become(self, spawn: hostcalls.Spawn, rights: list[int]) -> BegunHost | None:
        """Tell it that it is this host; None where the host is to be forked."""
        begun = None
        if self._number == spawn.host and self.pid and self._channel is not None and self._group is not None:
            with suppress(OSError):  # it has died, or the limit is not to be had
                self._group.limit(spawn.limits.processes)
                socket.send_fds(self._channel, [_pack(spawn)], rights)
                begun = BegunHost(self.pid, self._channel, self._group)
                self.pid, self._channel, self._group = 0, None, None
        self.pass_over(spawn.host)
        return begun

    def pass_over(self, number: int) -> None:
        """This host begins, and not from it: the name of its cgroup may be wanted."""
        self._next = max(self._next, number + 1)  # one that was held comes after later ones
        if self._number == number:
            self.end()

    def died(self, pid: int) -> None:
        """A child of the fork server has ended."""
        if pid == self.pid:
            self.pid = 0

    def end(self) -> None:
        """End it, and wait until its cgroup is gone."""
        if self._channel is not None:
            self._channel.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self._group is not None:
            self._group.kill()
        self.pid, self._channel, self._group = 0, None, None


def _wait(channel: socket.socket, begin: Begin, group: Group) -> None:
    group.enter()
    data, rights, _ = syscalls.receive(channel, hostcalls.MAX_SPAWN, _MAX_RIGHTS)
    if data:
        begin(_spawns.decode(data), list(rights), channel, group)
