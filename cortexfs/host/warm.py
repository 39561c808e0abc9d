"""A process that has imported what hosts of MCP servers need, and forks them for the fork server.

    fork server ── a spawn, its descriptors ──> warm fork ── fork ──> a middle ── fork ──> host

The SDK takes 0.4 s to import, for which a user's first call had waited. It is not imported in the fork
server: a plugin in Python may bring its own version of what the SDK needs. So there is this process, from the
first such host on, and its hosts share the memory. The middle ends at once, and a host becomes a child of the
fork server like any other, as that is a subreaper and the warm fork is none.

Rules: it holds nothing of the fork server's, hears nobody else, and ends with it. While it imports, its hosts
have to wait, and no others. When it is gone they come from the fork server, and import by themselves.
This file must never know what a call or a tool is.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.manifest.mcp_server import KIND
from cortexfs.host import start
from cortexfs.host.confine.limits import Group
from cortexfs.linux import syscalls

Begin = Callable[[hostcalls.Spawn, list[int], socket.socket, Group | None], NoReturn]

MODULE = "cortexfs.host.mcp.connection"
_READY = b"r"
_MAX_RIGHTS = 5  # a host's status and control sockets, what it prints to, a pidfd, a root


class _Fork(msgspec.Struct, frozen=True, array_like=True):
    spawn: hostcalls.Spawn
    group: str | None
    counts: bool


_pack = msgspec.msgpack.Encoder().encode
_forks: msgspec.msgpack.Decoder[_Fork] = msgspec.msgpack.Decoder(_Fork)


class HeldSpawn(NamedTuple):
    message: hostcalls.Spawn
    rights: list[int]
    whole: bool


class WarmFork:
    """It, as the fork server sees it."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._channel: socket.socket | None = None
        self._held: list[HeldSpawn] = []
        self.pid = 0  # none runs
        self.preparing = -1  # what says when it is ready, until then

    def holds(self, message: hostcalls.Spawn, rights: list[int], *, whole: bool) -> bool:
        """Returns True if it takes the message until it is ready: whoever imported meanwhile would wait
        for longer, and hold it up."""
        if message.plugin.kind == KIND and self._channel is None:
            self._prepare()
        if message.plugin.kind != KIND or self.preparing < 0:
            return False
        self._held.append(HeldSpawn(message, [*map(os.dup, rights)], whole))
        return True

    def released(self) -> Iterator[HeldSpawn]:
        """Hears that it is ready, or gone. Returns what was held."""
        assert self._channel is not None
        self.preparing = -1
        if not self._channel.recv(1):
            self._channel.close()
        while self._held:
            held = self._held.pop(0)
            yield held
            for fd in held.rights:
                os.close(fd)

    def is_for(self, spawn: hostcalls.Spawn) -> bool:
        return spawn.plugin.kind == KIND and self._channel is not None

    def host(
        self, spawn: hostcalls.Spawn, rights: list[int], status: socket.socket, group: Group | None
    ) -> int:
        """Returns the pid of a new host, or 0 where the fork server is to fork it."""
        if not self.is_for(spawn):
            return 0
        assert self._channel is not None
        place, counts = (str(group.path), group.counts) if group else (None, False)
        with suppress(OSError):  # it is gone
            asked = _pack(_Fork(spawn, place, counts))
            socket.send_fds(self._channel, [asked], [status.fileno(), *rights])
            return int(self._channel.recv(16) or 0)
        return 0

    def _prepare(self) -> None:
        self._channel, self.pid = start.helper(functools.partial(_run, begin=self._begin))
        self.preparing = self._channel.fileno()


def _run(channel: socket.socket, begin: Begin) -> None:
    try:
        importlib.import_module(MODULE)
    except ModuleNotFoundError:  # of which hosts tell who calls
        return
    gc.freeze()
    channel.send(_READY)
    while True:
        data, rights, _ = syscalls.receive(channel, hostcalls.MAX_SPAWN, _MAX_RIGHTS)
        if not data:
            return
        _forked(channel, _forks.decode(data), rights, begin)
        for fd in rights:
            os.close(fd)


def _forked(channel: socket.socket, asked: _Fork, rights: list[int], begin: Begin) -> None:
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    pid = 0
    with suppress(OSError):  # too many processes: the fork server says so
        above = os.pidfd_open(os.getpid())
        pid = os.fork()
        if not pid:
            select.select([above], [], [])  # until this is the fork server's child, with which it has to end
            os.close(above)
            group = Group(Path(asked.group)) if asked.group else None
            if group is not None:
                group.counts = asked.counts
            begin(asked.spawn, rights[1:], socket.socket(fileno=rights[0]), group)
    channel.send(b"%d" % pid)
    os._exit(os.EX_OK)
