"""A conversation with an agent of another machine: the client's lines go there, and its lines come here.

Rules: the daemon has decided who the client is, and reads no line. Programs that an object runs may not talk
there: how deep they are nested would be forgotten on the way.
This file must never know how machines talk to each other.
"""

from __future__ import annotations

import contextlib
import socket

import trio

from cortexfs.core import hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.peers import safe_sockets
from cortexfs.peers.streams import receive, send
from cortexfs.pool.host import announce
from cortexfs.pool.pool import Pool


def is_elsewhere(object_: Object) -> bool:
    return object_.plugin is not None and object_.plugin.kind == hostcalls.TEAM and object_.class_ == "agent"


async def converse(pool: Pool, object_: Object, identity: hostcalls.Identity, client: socket.socket) -> None:
    """Until either side has ended it. Raises a Fault where it cannot begin."""
    assert object_.plugin is not None
    if identity.depth:
        why = "what an object runs may not hold conversations on other machines"
        raise Fault("EACCES", f"{why}; run {object_.path} instead")
    host = await pool.acquire(object_.plugin, identity)
    with safe_sockets.closing(host.call(None)) as there:
        await send(there, announce(hostcalls.Converse()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, client, there)
            with contextlib.suppress(OSError):  # the client is gone, or the link
                while data := await receive(there):
                    await send(client, data)
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def _say(client: socket.socket, there: socket.socket) -> None:
    """Pass on what the client says, and that it says no more. Its reader sees that the other side is gone."""
    try:
        while data := await receive(client):
            await send(there, wire.message(wire.STDIN, data))
            await trio.lowlevel.checkpoint()
        await send(there, wire.message(wire.STDIN, b""))
    except OSError:
        with contextlib.suppress(OSError):
            there.shutdown(socket.SHUT_RDWR)
