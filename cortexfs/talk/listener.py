"""The objects' sockets, bound through the mount, and the clients that connect to them (abi.md 5).

Main path: `reconcile` binds a socket for each object that talks, and closes the sockets of objects that no
longer can. `_serve` accepts, and each client becomes a Connection. In a conversation with an agent of another
machine, no line is read here: the lines are passed on both ways.

Rules: the starter binds, as the trio thread must answer the MKNOD that binding causes. An object that is
declared and cannot be served keeps its name in the tree without a listener, so connect(2) says ECONNREFUSED.
A bound socket pins the mount: all are closed before unmounting.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from functools import partial

import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key, Object
from cortexfs.core.talk import requests
from cortexfs.core.tree import places
from cortexfs.peers import safe_sockets
from cortexfs.peers.caller import Caller, nobody
from cortexfs.peers.guests import Arrivals, Guest, Guests
from cortexfs.peers.streams import receive, send
from cortexfs.plugins.catalog import BUILTIN
from cortexfs.pool.call import ask
from cortexfs.pool.callers import Look
from cortexfs.pool.host import announce
from cortexfs.pool.pool import Pool
from cortexfs.pool.starter import Starter
from cortexfs.talk.connection import Connection
from cortexfs.talk.conversations import Conversations
from cortexfs.tree.socket_binding import Bindings, Gone

BACKLOG = 4096  # as many as Linux allows at most, unless net.core.somaxconn says otherwise
CALLS = 16  # of `.run.sock`, where a caller who fills it delays the next caller by as many
PAUSE = 0.004  # a client stays longer than a runner: 4,000 new ones a second are enough
CWD_SECONDS = 5.0


log = logging.getLogger("cortexfs")


async def listen(starter: Starter, bindings: Bindings, object_: Object | None = None) -> socket.socket:
    """Returns a listener for the object, or for `.run.sock`. Raises OSError, and Gone."""
    path = wire.BIND_NAME if object_ else wire.SOCKET_NAME
    async with starter.binds:
        with bindings.expecting(object_, starter.pid):
            listener = await starter.listener(path, BACKLOG if object_ else CALLS)
    safe_sockets.refuse_rights(listener)
    listener.setblocking(False)
    return listener


class Sockets:
    """The listeners, by object."""

    def __init__(
        self,
        bindings: Bindings,
        conversations: Conversations,
        pool: Pool,
        connections: int,
        arrivals: Arrivals,
        sandboxed: Callable[[int], bool] = nobody,
        strict: bool = False,
    ) -> None:
        self._sandboxed = sandboxed
        self._bindings = bindings
        self._conversations = conversations
        self._pool = pool
        self._guests = Guests(connections)
        self._strict = strict
        self._arrivals = arrivals
        self._open: dict[Key, tuple[Object, socket.socket, trio.CancelScope]] = {}
        self._clients: trio.Nursery | None = None
        self._connections: set[Connection] = set()
        self._departures = trio.lowlevel.ParkingLot()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the clients that connect, until cancelled."""
        try:
            async with trio.open_nursery() as self._clients:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Close the listeners. Connected clients stay."""
        for key in list(self._open):
            self._shut(key)

    async def let_go(self) -> None:
        """Wait until every client has got the ends of its runs."""
        for connection in self._connections:
            connection.let_go()
        while self._connections:
            await self._departures.park()

    async def reconcile(self, objects: Iterable[Object]) -> None:
        """Listen for the objects that can be talked to, and for no others."""
        talking = (each for each in objects if places.has_socket(each))
        expected = {each.key: each for each in talking if not each.status.startswith("broken")}
        for key in [key for key, (object_, *_) in self._open.items() if _is_gone(object_, expected.get(key))]:
            self._shut(key)
        for key, object_ in expected.items():
            if key not in self._open:
                await self._listen(object_)

    def _shut(self, key: Key) -> None:
        """Refuse connections from now on (unix(7): a socket that is shut down takes none). The task that
        accepts closes it, as it may be about to wait for it."""
        _, listener, scope = self._open.pop(key)
        with contextlib.suppress(OSError):  # it is closed while the daemon ends
            listener.shutdown(socket.SHUT_RDWR)
        scope.cancel()

    async def _listen(self, object_: Object) -> None:
        assert self._clients
        try:
            listener = await listen(self._pool.starter, self._bindings, object_)
        except Gone:
            return
        except OSError as error:
            if object_.home is not None and error.errno == errno.ENOENT:  # it was removed meanwhile
                return
            log.error("%s.sock cannot be bound: %s", "/".join(object_.key), error)
            return
        scope = trio.CancelScope()
        self._open[object_.key] = (object_, listener, scope)
        self._clients.start_soon(self._serve, object_, listener, scope, self._clients)

    async def _serve(
        self, object_: Object, listener: socket.socket, scope: trio.CancelScope, clients: trio.Nursery
    ) -> None:
        def begin(stream: socket.socket, guest: Guest) -> Callable[[], object]:
            return partial(clients.start_soon, self._client, object_, stream, guest)

        with safe_sockets.closing(listener), scope:
            await self._arrivals.welcome(listener, self._guests, begin, PAUSE)

    async def _client(self, object_: Object, stream: socket.socket, guest: Guest) -> None:
        """Serve a client, so that a bug ends only this connection."""
        try:
            with safe_sockets.closing(stream), contextlib.suppress(OSError):
                await self._converse(object_, stream)
        except Exception:  # it would end all tasks of the nursery; the log has it
            log.exception("a bug ended a client's connection")
            if self._strict:
                raise
        finally:
            self._guests.leave(guest)

    async def _converse(self, object_: Object, stream: socket.socket) -> None:
        async def check_cwd(path: str) -> None:
            with await self._admitted(stream) as caller:
                await self._enter(caller.identity, stream, path)

        people = self._pool.people
        with contextlib.ExitStack() as leaving:
            try:
                with await self._admitted(stream) as caller:
                    identity = caller.identity
                if not object_.serves(identity.uid):
                    raise Fault("EACCES", f"{object_.path} works only for uid {object_.home}, its owner")
                leaving.callback(people.keep(identity, stream))
                if object_.class_ == "agent" and object_.plugin_kind == hostcalls.TEAM:
                    return await _converse_elsewhere(self._pool, object_, identity, stream)
            except Fault as fault:
                return await send(stream, frames.encode(requests.refusal(fault)))
            connection = Connection(
                self._conversations, object_.key, stream, identity, self._guests, people, check_cwd
            )
            self._connections.add(connection)
            try:
                await connection.serve()
            finally:
                self._connections.discard(connection)
                self._departures.unpark_all()

    async def _admitted(self, stream: socket.socket) -> Caller:
        """Returns the caller. A process under a label is kept out of its user's sessions (abi.md 7.3)."""
        with contextlib.closing(Look(self._pool.looker, stream, self._sandboxed)) as look:
            caller = await look.caller()
        if caller.identity.label or caller.identity.script is not None:
            with caller:
                label = caller.identity.label or "a script of a client"
                raise Fault("EACCES", f"{label} may not use the sockets of objects; run the object instead")
        return caller

    async def _enter(self, identity: hostcalls.Identity, stream: socket.socket, path: str) -> None:
        """Have a host of the user check that he may work in this directory."""
        host = await self._pool.acquire(BUILTIN, identity, stream)
        answered = False
        try:
            with trio.move_on_after(CWD_SECONDS):
                answered = await ask(host, hostcalls.Enter(path), wire.DONE) is not None
        except Fault:
            answered = True
            raise
        except OSError:
            pass
        finally:
            self._pool.release(host, stuck=not answered)
        if not answered:
            raise Fault("ETIMEDOUT", f"cwd: {path} cannot be entered: its file system does not answer")


def _is_gone(old: Object, new: Object | None) -> bool:
    """Returns True if an object is gone, or a user's own object was made again under its name."""
    return new is None or (old.home is not None and old.registered != new.registered)


async def _converse_elsewhere(
    pool: Pool, object_: Object, identity: hostcalls.Identity, client: socket.socket
) -> None:
    """Pass lines on until either side ends. Raises a Fault for a program that an object runs: such a program
    may not talk there, as its depth of nesting would be lost on the way."""
    assert object_.plugin is not None
    if identity.depth:
        why = "a program that an object runs may not use the sockets of other machines' objects"
        raise Fault("EACCES", f"{why}; run {object_.path} instead")
    host = await pool.acquire(object_.plugin, identity)
    with safe_sockets.closing(host.call(None)) as stream:
        await send(stream, announce(hostcalls.Converse()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, client, stream)
            with contextlib.suppress(OSError):  # the client is gone, or the link
                while data := await receive(stream):
                    await send(client, data)
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def _say(client: socket.socket, stream: socket.socket) -> None:
    """Pass on the client's lines and its end. The task that reads sees that the other side is gone."""
    try:
        while data := await receive(client):
            await send(stream, wire.message(wire.STDIN, data))
            await trio.lowlevel.checkpoint()
        await send(stream, wire.message(wire.STDIN, b""))
    except OSError:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
