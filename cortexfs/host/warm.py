"""A process that has imported the modules of hosts of MCP servers, and forks such hosts for the fork server.

    fork server ── a spawn, its descriptors ──> warm fork ── fork ──> a middle ── fork ──> host

The SDK takes 0.4 s to import, for which a user's first call would wait. The fork server does not import it,
as a plugin in Python may bring its own versions of the SDK's dependencies. So the first such host starts this
process, and its hosts share the memory. The middle ends at once. Its host becomes a child of the fork server
like any other, as that is a subreaper and the warm fork is not.

Rules: it holds nothing of the fork server's, takes requests only from it, and ends with it. While it imports,
only its own hosts wait. When it is gone, the fork server forks these hosts, and they import by themselves.
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
from typing import NoReturn

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.manifest.mcp_server import KIND
from cortexfs.host import start
from cortexfs.host.confine.limits import Group
from cortexfs.linux import syscalls

Begin = Callable[[hostcalls.Spawn, list[int], socket.socket, Group | None], NoReturn]

MODULE = "cortexfs.host.mcp.connection"
_READY = b"r"
_MAX_RIGHTS = 5  # a host's status and control sockets, its standard error, a pidfd, a root


class _Fork(msgspec.Struct, frozen=True, array_like=True):
    spawn: hostcalls.Spawn
    group: str | None
    counts: bool


_pack = msgspec.msgpack.Encoder().encode
_forks: msgspec.msgpack.Decoder[_Fork] = msgspec.msgpack.Decoder(_Fork)


class WarmFork:
    """The warm fork, as the fork server sees it."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._channel: socket.socket | None = None
        self._held: list[tuple[hostcalls.Spawn, list[int]]] = []
        self.pid = 0  # 0: none runs
        self.preparing = -1  # the descriptor that becomes readable once it is ready; then -1

    def holds(self, message: hostcalls.Spawn, rights: list[int]) -> bool:
        """Returns True if it keeps the message until it is ready. A host that imported by itself meanwhile
        would take longer, and would slow the warm fork down."""
        if message.plugin.kind == KIND and self._channel is None:
            self._prepare()
        if message.plugin.kind != KIND or self.preparing < 0:
            return False
        self._held.append((message, [*map(os.dup, rights)]))
        return True

    def released(self) -> Iterator[tuple[hostcalls.Spawn, list[int]]]:
        """Called when the warm fork is ready, or gone. Yields the held messages, with their rights."""
        assert self._channel is not None
        self.preparing = -1
        if not self._channel.recv(1):
            self._channel.close()
        while self._held:
            message, rights = self._held.pop(0)
            yield message, rights
            for fd in rights:
                os.close(fd)

    def is_for(self, spawn: hostcalls.Spawn) -> bool:
        return spawn.plugin.kind == KIND and self._channel is not None

    def host(
        self, spawn: hostcalls.Spawn, rights: list[int], status: socket.socket, group: Group | None
    ) -> int:
        """Returns the pid of a new host, or 0 if the fork server has to fork it."""
        if not self.is_for(spawn):
            return 0
        assert self._channel is not None
        place, counts = (str(group.path), group.counts) if group else (None, False)
        with suppress(OSError):  # the warm fork is gone
            request = _pack(_Fork(spawn, place, counts))
            socket.send_fds(self._channel, [request], [status.fileno(), *rights])
            return int(self._channel.recv(16) or 0)
        return 0

    def _prepare(self) -> None:
        self._channel, self.pid = start.helper(functools.partial(_run, begin=self._begin))
        self.preparing = self._channel.fileno()


def _run(channel: socket.socket, begin: Begin) -> None:
    try:
        importlib.import_module(MODULE)
    except ModuleNotFoundError:  # the hosts report it to their callers
        return
    gc.freeze()
    channel.send(_READY)
    while True:
        data, rights, _ = syscalls.receive(channel, hostcalls.MAX_SPAWN, _MAX_RIGHTS)
        if not data:
            return
        _fork(channel, _forks.decode(data), rights, begin)
        for fd in rights:
            os.close(fd)


def _fork(channel: socket.socket, request: _Fork, rights: list[int], begin: Begin) -> None:
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    pid = 0
    with suppress(OSError):  # too many processes: the fork server reports it
        above = os.pidfd_open(os.getpid())
        pid = os.fork()
        if not pid:
            select.select([above], [], [])  # until this is a child of the fork server, to end with it
            os.close(above)
            group = Group(Path(request.group)) if request.group else None
            if group is not None:
                group.counts = request.counts
            begin(request.spawn, rights[1:], socket.socket(fileno=rights[0]), group)
    channel.send(b"%d" % pid)
    os._exit(os.EX_OK)
