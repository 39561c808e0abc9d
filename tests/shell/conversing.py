"""Connections on socket pairs, with real sessions on a disk and the debug models, and no mount."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import trio

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Key
from cortexfs.models.ask.driver import Driver
from cortexfs.models.drivers import DRIVERS
from cortexfs.peers import safe_sockets
from cortexfs.peers.guests import Guests
from cortexfs.peers.streams import receive, send
from cortexfs.pool.run_table import Runs
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.log import Most
from cortexfs.sessions.store import SessionLimits, Sessions
from cortexfs.state.run_logs import Logs
from cortexfs.talk.connection import Connection
from cortexfs.talk.conversations import Conversations
from tests.settled import settled
from tests.shell.calling import no_hosts
from tests.waiting import PATIENCE

ECHO: Key = ("model", "debug/echo")
SCRIPT: Key = ("model", "debug/script")
HANG = '[{"delta":"begun"},{"hang":true}]'

Frame: TypeAlias = dict[str, Any]


class Client:
    """One end of a connection: it sends JSON and receives JSON."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self.stream = stream
        self._rest = bytearray()

    async def raw(self, data: bytes) -> None:
        await send(self.stream, data)

    async def ask(self, op: str, **fields: object) -> None:
        await self.raw(json.dumps({"op": op, **fields}).encode() + b"\n")

    async def send(self, input: object, **fields: object) -> None:
        await self.ask("send", **fields, input=input)

    def no_more(self) -> None:
        self.stream.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        self.stream.close()

    async def frame(self) -> Frame | None:
        """Returns the next frame, or None at the end."""
        while (end := self._rest.find(b"\n")) < 0:
            if not (data := await self._received()):
                assert not self._rest
                return None
            self._rest += data
        frame = json.loads(self._rest[:end])
        del self._rest[: end + 1]
        assert isinstance(frame, dict)
        return frame

    async def _received(self) -> bytes:
        with trio.fail_after(PATIENCE):
            try:
                return await receive(self.stream)
            except ConnectionResetError:
                return b""

    async def until(self, type_: str, **fields: object) -> list[Frame]:
        found = []
        while frame := await self.frame():
            found.append(frame)
            if frame["type"] == type_ and fields.items() <= frame.items():
                return found
        raise AssertionError(f"the connection ended before {type_}: {found}")

    async def error(self) -> Frame:
        frame = await self.frame()
        assert frame
        assert frame["type"] == "error", frame
        return frame

    async def rest(self) -> list[Frame]:
        found = []
        while frame := await self.frame():
            found.append(frame)
        return found

    async def all(self) -> list[Frame]:
        """Close the sending side, and return all frames that follow."""
        self.no_more()
        return await self.rest()

    async def is_alive(self) -> bool:
        await self.ask("ping", id="alive?")
        return (await self.until("pong"))[-1] == {"type": "pong", "request": "alive?"}


class World:
    """The service that clients of a test connect to, with its sessions, runs and open connections."""

    def __init__(self, sessions: Sessions, nursery: trio.Nursery, connections: int, drivers: Drivers) -> None:
        self.sessions = sessions
        self.runs = Runs(Logs(sessions.root.parent / "log", 1 << 20), 256, 4096)
        self.conversations = Conversations(sessions, self.runs, drivers or _driver)
        self.guests = Guests(connections)
        self.now = 0
        self.uid = os.getuid()
        self._nursery = nursery
        self._left = trio.lowlevel.ParkingLot()

    def connect(self, object: Key = ECHO, uid: int | None = None) -> Client:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        uid = self.uid if uid is None else uid
        connection = Connection(
            self.conversations,
            object,
            ours,
            Identity(uid, uid, ()),
            self.guests,
            no_hosts().people,
            _check_cwd,
        )
        self.now += 1
        self._nursery.start_soon(self._serve, connection, ours)
        return Client(theirs)

    @contextlib.contextmanager
    def connected(self, object: Key = ECHO, uid: int | None = None) -> Iterator[Client]:
        client = self.connect(object, uid)
        try:
            yield client
        finally:
            client.leave()

    async def _serve(self, connection: Connection, ours: socket.socket) -> None:
        with safe_sockets.closing(ours), contextlib.suppress(OSError):
            await connection.serve()
        self.now -= 1
        self._left.unpark_all()

    async def deserted(self) -> None:
        """Wait until every connection has ended."""
        with trio.fail_after(PATIENCE):
            while self.now:
                await self._left.park()

    async def idle(self) -> None:
        """Wait until nobody is connected, nothing runs, and everything is on disk."""
        await self.deserted()
        with trio.fail_after(PATIENCE):
            while self.runs.active:
                await trio.lowlevel.checkpoint()
            await settled(self.sessions)

    def address(self, session: str = "default", object: Key = ECHO, uid: int | None = None) -> Address:
        return Address(Space.private(self.uid if uid is None else uid), *object, session)

    def held(self, uid: int | None = None) -> int:
        """Returns the number of bytes that are held for this user."""
        return self.guests._sizes[self.uid if uid is None else uid]


Drivers: TypeAlias = Callable[[Key], Driver] | None


def _driver(key: Key) -> Driver:
    return DRIVERS["debug." + key[1].rpartition("/")[2]]


async def _check_cwd(path: str) -> None:
    await trio.lowlevel.checkpoint()
    if not os.path.isdir(path):  # noqa: ASYNC240
        raise Fault("ENOENT", f"cwd: {path} is not there")


@contextlib.asynccontextmanager
async def conversing(
    root: Path,
    *,
    connections: int = 4096,
    drivers: Drivers = None,
    limits: SessionLimits | None = None,
    sync: Callable[[int], None] = os.fsync,
    most: Most | None = None,
) -> AsyncIterator[World]:
    world: World | None = None

    def removed(address: Address) -> None:
        if world:
            world.conversations.removed(address)

    reports: list[str] = []
    sessions = Sessions(
        root / "sessions",
        lambda _, remark: reports.append(remark),
        limits=limits,
        removed=removed,
        sync=sync,
        most=most,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        world = World(sessions, nursery, connections, drivers)
        sessions.on_loss(world.conversations.log_lost)
        await nursery.start(world.conversations.run)
        yield world
        nursery.cancel_scope.cancel()
