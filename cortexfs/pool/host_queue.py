"""The wait for a host, for a user whose hosts are all at work.

    turnstile = Turnstile(pool)
    host = await turnstile.host(plugin, identity)
    ...                                     the call, which gives the host back
    turnstile.freed(uid)

Rules: no call waits longer than PATIENCE. A waiting call also looks by itself, not only when it is woken.
This file must never know the purpose of a call.
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
LOOK = 1.0  # seconds after which a waiting call looks by itself


class Turnstile:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: WeakValueDictionary[int, trio.lowlevel.ParkingLot] = WeakValueDictionary()

    async def host_of(
        self, plugin: hostcalls.Plugin, identity: hostcalls.Identity, stream: socket.socket | None = None
    ) -> Host:
        """Returns a host. For an agent, as for its tools, it waits; a person gets EAGAIN at once."""
        if identity.view is None:
            return await self._pool.acquire(plugin, identity, stream)
        return await self.host(plugin, identity)

    async def host(self, plugin: hostcalls.Plugin, identity: hostcalls.Identity) -> Host:
        """Returns a host of this user as soon as there is one. Raises EAGAIN when that takes too long."""
        deadline = trio.current_time() + PATIENCE
        while True:
            try:
                return await self._pool.acquire(plugin, identity)
            except Fault as fault:
                if fault.code != "EAGAIN" or trio.current_time() >= deadline:
                    raise
            # Other hosts of the user, at work for other callers or about to end, wake no call here.
            with trio.move_on_at(min(deadline, trio.current_time() + LOOK)):
                await self._waiting.setdefault(identity.uid, trio.lowlevel.ParkingLot()).park()

    def freed(self, uid: int) -> None:
        """Note that a call of this user has ended."""
        if waiting := self._waiting.get(uid):
            waiting.unpark()
