"""The callers of the daemon. The looker sees where the caller is, while the daemon reads what is asked.

    with callers.look(connection, sandboxed) as look:    as soon as somebody has connected
        with await look.caller() as caller:              when it is to be known who that is

Rules: the caller's powers are read before it is seen where it is. Somebody who was seen here may enter a user
namespace, in which /proc then shows powers that are none here.
This file must never know what is called.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from cortexfs.core.errors import Fault
from cortexfs.peers.ancestry import KnownHost
from cortexfs.peers.caller import Caller, Peer, credentials, gone, nobody
from cortexfs.pool.looker import Looker, Question


class Callers:
    def __init__(self, looker: Looker, hosts: Mapping[int, KnownHost]) -> None:
        """`hosts` are the live ones, by pid."""
        self._looker = looker
        self._hosts = hosts

    def look(self, connection: socket.socket, sandboxed: Callable[[int], bool] = nobody) -> Look:
        return Look(self._looker, self._hosts, connection, sandboxed)


class Look:
    def __init__(
        self,
        looker: Looker,
        hosts: Mapping[int, KnownHost],
        connection: socket.socket,
        sandboxed: Callable[[int], bool],
    ) -> None:
        self._looker = looker
        self._peer: Peer | Fault
        self._question: Question | None = None
        try:
            self._peer = Peer(connection, credentials(connection), hosts, sandboxed)
            self._question = looker.ask(self._peer.pid)
        except Fault as fault:
            self._peer = fault
        except OSError as error:
            self._peer = gone(error)

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        if self._question:
            self._looker.forget(self._question)
        if isinstance(self._peer, Peer):
            self._peer.close()

    async def caller(self) -> Caller:
        """Raises Fault EACCES or ESRCH where it is not admitted, or not to be known for certain."""
        if isinstance(self._peer, Fault):
            raise self._peer
        assert self._question
        try:
            seen = await self._looker.seen(self._question)
            self._question = None
            return self._peer.caller(seen)
        except OSError as error:
            raise gone(error) from error
