"""The wait for a host, where a user has as many at work as he may.

    turnstile = Turnstile(pool)
    host = await turnstile.host(plugin, identity)
    ...                                     the call, which gives the host back
    turnstile.freed(uid)

Rules: nobody waits longer than PATIENCE, or hears of an end only by looking again.
This file must never know what is called.
"""

from __future__ import annotations

import socket
from weakref import WeakValueDictionary

import trio

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.pool.host import Host
from cortexfs.pool.pool import Pool

PATIENCE = 30.0  # seconds that a call waits for a host
LOOK = 1.0  # and after which it looks by itself


class Turnstile:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: WeakValueDictionary[int, trio.lowlevel.ParkingLot] = WeakValueDictionary()

    async def host_of(
        self, plugin: hostcalls.Plugin, identity: hostcalls.Identity, stream: socket.socket | None = None
    ) -> Host:
        """Returns one for an agent as for its tools: it waits. A person hears at once that too many work."""
        if identity.view is None:
            return await self._pool.acquire(plugin, identity, stream)
        return await self.host(plugin, identity)

    async def host(self, plugin: hostcalls.Plugin, identity: hostcalls.Identity) -> Host:
        """Returns one of this user's, as soon as one may be had; EAGAIN when that takes too long."""
        deadline = trio.current_time() + PATIENCE
        while True:
            try:
                return await self._pool.acquire(plugin, identity)
            except Fault as fault:
                if fault.code != "EAGAIN" or trio.current_time() >= deadline:
                    raise
            # Hosts of his that are at work otherwise, or have yet to end, wake nobody here.
            with trio.move_on_at(min(deadline, trio.current_time() + LOOK)):
                await self._waiting.setdefault(identity.uid, trio.lowlevel.ParkingLot()).park()

    def freed(self, uid: int) -> None:
        """A call of this user's has ended."""
        if waiting := self._waiting.get(uid):
            waiting.unpark()
