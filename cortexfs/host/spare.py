"""A process that is forked before the next host is wanted, and waits in that host's cgroup.

To let a process into a cgroup, the kernel may wait until every processor has passed a quiet moment: 5 to 14
ms, for which a user's first call of each plugin would wait. So the fork server makes a host ahead of time,
when it has nothing else to do.

Rules: the spare keeps only a channel of the fork server's, does nothing until it learns which host it is, and
ends with the fork server. The number of the next host is a guess. If the guess is wrong, or the spare is
gone, the host is forked as any other.
This file must never know what a call or a tool is.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
from contextlib import suppress

import msgspec

from cortexfs.core import hostcalls
from cortexfs.host import start
from cortexfs.host.confine.limits import Group, Groups
from cortexfs.host.warm import Begin
from cortexfs.linux import syscalls

# The fork server must be idle for so long: a host that has just begun needs the cores.
QUIET_SECONDS = 0.1
_MAX_RIGHTS = 4  # a host's control socket, its standard error, a pidfd, a root
_STRICTEST = 1  # processes, until the host's own limit is known

_pack = msgspec.msgpack.Encoder().encode
_spawns: msgspec.msgpack.Decoder[hostcalls.Spawn] = msgspec.msgpack.Decoder(hostcalls.Spawn)


class Spare:
    """The spare, as the fork server sees it."""

    def __init__(self, begin: Begin, groups: Groups | None) -> None:
        self._begin = begin
        self._groups = groups
        self._number = 0  # of the host for which the spare is
        self._channel: socket.socket | None = None
        self._group: Group | None = None
        self.pid = 0  # 0: none waits
        self._next = 1

    @property
    def is_wanted(self) -> bool:
        return self._groups is not None and self._number != self._next

    def make(self) -> None:
        """Fork the spare. If that fails, the next host is forked as any other."""
        assert self._groups is not None
        self.end()
        self._number = self._next
        with suppress(OSError):
            self._group = self._groups.create(self._number, _STRICTEST)
            wait = functools.partial(_wait, begin=self._begin, group=self._group)
            self._channel, self.pid = start.helper(wait)
            self._channel.setblocking(False)

    def become(self, spawn: hostcalls.Spawn, rights: list[int]) -> tuple[int, socket.socket, Group] | None:
        """Make the spare this host. Returns its pid, the socket on which it reports, and its cgroup; None if
        the host has to be forked."""
        host = None
        if self._number == spawn.host and self.pid and self._channel is not None and self._group is not None:
            with suppress(OSError):  # the spare has died, or its limit cannot be set
                self._group.limit(spawn.limits.processes)
                socket.send_fds(self._channel, [_pack(spawn)], rights)
                host = self.pid, self._channel, self._group
                self.pid, self._channel, self._group = 0, None, None
        self.pass_over(spawn.host)
        return host

    def pass_over(self, number: int) -> None:
        """This host begins without the spare, whose cgroup may have its name: then end the spare."""
        self._next = max(self._next, number + 1)  # a held spawn may come after later numbers
        if self._number == number:
            self.end()

    def died(self, pid: int) -> None:
        """A child of the fork server has ended."""
        if pid == self.pid:
            self.pid = 0

    def end(self) -> None:
        """End the spare, and wait until its cgroup is gone."""
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
