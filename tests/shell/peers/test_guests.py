"""The order in which connections are begun, with real listeners; only the users are made up."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from cortexfs.peers import guests
from cortexfs.peers.guests import ACCEPTED, BEGUN, SHARE, Arrivals, Guest, Guests
from tests.shell.calling import open_files
from tests.waiting import PATIENCE

ALICE, BOB = 1001, 1002
MANY = 1000


@pytest.fixture(autouse=True)
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of a client is taken from the name it is bound to."""
    monkeypatch.setattr(guests, "peer_uid", lambda stream: int(Path(stream.getpeername()).suffix[1:]))


async def turned(is_so: Callable[[], bool]) -> None:
    """Run turns of the loop until `is_so` is true; a test's time limit bounds this."""
    while not is_so():
        await trio.lowlevel.checkpoint()


class World:
    """Listeners whose connections are recorded as they are begun."""

    def __init__(self, place: Path, connections: int = MANY * SHARE) -> None:
        self.guests = Guests(connections)
        self.arrivals = Arrivals()
        self.begun: list[int] = []
        self._place = place
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def listener(self, name: str) -> socket.socket:
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self._place / name))
        listener.listen(MANY)
        listener.setblocking(False)
        return listener

    def client(self, name: str, uid: int) -> socket.socket:
        client = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        client.bind(str(self._place / f"{len(os.listdir(self._place))}.{uid}"))
        client.connect(str(self._place / name))
        return client

    def crowded(self) -> list[socket.socket]:
        """Returns two listeners. Many connections of one user wait at the first."""
        listeners = [self.listener(name) for name in ("a", "b")]
        for _ in range(MANY):
            self.client("a", ALICE)
        return listeners

    def begin(self, stream: socket.socket, guest: Guest) -> Callable[[], None]:
        self._stack.enter_context(stream)
        return partial(self.begun.append, guest.uid)

    @property
    def waiting(self) -> int:
        return sum(map(len, self.arrivals._waiting.values()))

    def start(self, nursery: trio.Nursery, *listeners: socket.socket, pause: float = 0.0) -> None:
        nursery.start_soon(self.arrivals.run)
        self.welcome(nursery, *listeners, pause=pause)

    def welcome(self, nursery: trio.Nursery, *listeners: socket.socket, pause: float = 0.0) -> None:
        for each in listeners:
            nursery.start_soon(partial(self.arrivals.welcome, each, self.guests, self.begin, pause))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


async def test_one_of_a_user_is_not_behind_all_of_anothers(world: World) -> None:
    # guests.py: "one of each user after the other"
    listeners = world.crowded()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            world.welcome(nursery, *listeners)
            await turned(lambda: len(world.begun) + world.waiting == MANY)
            assert len(world.begun) == BEGUN
            nursery.start_soon(world.arrivals.run)
            world.client("b", BOB)
            await turned(lambda: BOB in world.begun)
            assert world.begun.index(BOB) <= 5 * BEGUN  # the turns until Bob is seen and begun
            await turned(lambda: len(world.begun) == MANY + 1)  # and no connection is forgotten
            nursery.cancel_scope.cancel()


async def test_many_listeners_begin_no_more_than_one(world: World) -> None:
    # guests.py: "of all listeners together"
    names = [f"listener{number}" for number in range(20)]
    listeners = [world.listener(name) for name in names]
    for number in range(MANY):
        world.client(names[number % len(names)], ALICE)
    turns = 0
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            world.start(nursery, *listeners)
            while len(world.begun) < MANY // 2:
                await trio.lowlevel.checkpoint()
                turns += 1
            nursery.cancel_scope.cancel()
    assert turns >= MANY // 2 // BEGUN


async def test_a_surplus_is_closed_unread(tmp_path: Path) -> None:
    # guests.py: "A waiting connection counts as connected, and those over a user's share are closed unread."
    share = 2 * BEGUN
    with World(tmp_path, share * SHARE) as world:
        listener = world.listener("a")
        clients = [world.client("a", ALICE) for _ in range(3 * share)]
        for client in clients:
            client.send(b"what nobody reads")
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                world.start(nursery, listener)
                world.client("a", BOB)
                await turned(lambda: BOB in world.begun)
                nursery.cancel_scope.cancel()
        assert world.begun.count(ALICE) == share
        for client in clients[share:]:
            with pytest.raises(ConnectionResetError):  # unix(7): the sent data was not read
                client.recv(1)


async def test_what_is_closed_is_never_begun(world: World) -> None:
    # guests.py: "A connection that its client has closed is never begun"
    listener = world.listener("a")
    for _ in range(MANY):
        world.client("a", ALICE).close()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            world.start(nursery, listener)
            world.client("a", BOB)
            await turned(lambda: BOB in world.begun and not world.waiting)
            nursery.cancel_scope.cancel()
    assert world.begun == [BOB]
    assert world.guests._total == 1


async def test_who_has_said_something_or_still_listens_is_begun(world: World) -> None:
    # abi.md 5.24
    listener = world.listener("a")
    gone, listening = world.client("a", ALICE), world.client("a", BOB)
    gone.send(b"a request")
    gone.close()
    listening.shutdown(socket.SHUT_WR)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            world.start(nursery, listener)
            await turned(lambda: len(world.begun) == 2)
            nursery.cancel_scope.cancel()


async def test_a_crowded_listener_pauses_and_no_other_does(world: World) -> None:
    # guests.py: "A crowded listener, at which more wait than are accepted at a time, pauses."
    listeners = world.crowded()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            world.start(nursery, *listeners, pause=2 * PATIENCE)
            await turned(lambda: world.begun.count(ALICE) == ACCEPTED)
            for number in range(ACCEPTED):  # in as many turns of the loop
                world.client("b", BOB)
                await turned(partial(lambda so_far: world.begun.count(BOB) > so_far, number))
            nursery.cancel_scope.cancel()
    assert world.begun.count(ALICE) == ACCEPTED
    assert not world.guests.crowded


async def test_what_waits_at_the_end_is_closed(world: World) -> None:
    listener = world.listener("a")
    before = open_files()
    clients = [world.client("a", ALICE) for _ in range(ACCEPTED)]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            world.start(nursery, listener)
            await turned(lambda: world.waiting > 0)
            nursery.cancel_scope.cancel()
    assert open_files() == before + len(clients) + len(world.begun)
    assert world.guests._total == len(world.begun)
