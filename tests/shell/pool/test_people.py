"""people.py: the users that the fork server learns of, when it does, and for how long."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Forget, Identity, Meet
from cortexfs.pool.people import People

SHE = Identity(7, 7, (1, 7), capabilities=3)
AGENT = replace(SHE, groups=(1,), capabilities=0, label="agent/coder", view=(), network=False)


class Forks:
    """A fork server that records its messages."""

    def __init__(self) -> None:
        self.told: list[hostcalls.ToForkServer] = []
        self.is_gone = False

    def send(self, message: hostcalls.ToForkServer, rights: Sequence[int]) -> None:
        if self.is_gone:
            raise Fault("EHOSTDOWN", "gone")
        assert bool(rights) == isinstance(message, Meet)
        assert all(fd >= 0 for fd in rights)
        self.told.append(message)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


@pytest.fixture
def forks() -> Forks:
    return Forks()


@pytest.fixture
def people(forks: Forks) -> People:
    return People(forks.send)


def test_it_is_told_when_there_is_need(people: People, forks: Forks, sock: socket.socket) -> None:
    let_go = people.keep(SHE, sock)
    assert forks.told == []
    assert people.number(SHE) == people.number(AGENT) == people.number(replace(SHE, depth=2)) == 1
    assert forks.told == [Meet(1)]
    let_go()
    assert forks.told == [Meet(1), Forget(1)]
    assert people.number(SHE) == 0


def test_it_is_told_once_of_all_that_somebody_does(people: People, forks: Forks, sock: socket.socket) -> None:
    holds = [people.keep(SHE, sock), people.keep(SHE, sock), people.outlast(SHE), people.outlast(SHE)]
    for let_go in holds:
        assert people.number(SHE) == 1
        let_go()
    assert forks.told == [Meet(1), Forget(1)]
    people.keep(SHE, sock)()
    assert forks.told == [Meet(1), Forget(1)]


def test_an_agent_without_a_connection_is_known_by_its_person(
    people: People, forks: Forks, sock: socket.socket
) -> None:
    let_go = people.keep(SHE, sock)
    outlasts = people.outlast(AGENT)
    assert people.number(AGENT) == people.number(SHE) == 1
    let_go()
    assert people.number(AGENT) == 1  # there is still work for this user
    outlasts()
    assert forks.told == [Meet(1), Forget(1)]


def test_whoever_can_be_met_is_known_before_one_who_cannot(
    people: People, forks: Forks, sock: socket.socket
) -> None:
    left = people.outlast(AGENT)  # no connection of the user is there yet
    assert people.number(AGENT) == 1
    assert forks.told == []
    let_go = people.keep(SHE, sock)
    assert people.number(AGENT) == 2
    assert forks.told == [Meet(2)]
    left()
    let_go()
    assert forks.told == [Meet(2), Forget(2)]


@pytest.mark.parametrize(
    "more", [{"uid": 8}, {"gid": 8}, {"groups": (1, 7, 8)}, {"capabilities": 4}, {"root": (1, 2)}]
)
def test_somebody_else_is_not_known(more: dict[str, object], people: People, sock: socket.socket) -> None:
    people.keep(SHE, sock)
    assert people.number(replace(SHE, **more)) == 0


def test_work_that_outlasts_its_connection(people: People, forks: Forks, sock: socket.socket) -> None:
    leave = people.keep(SHE, sock)
    over = people.outlast(SHE)
    assert forks.told == [Meet(1)]  # while the user's connection is there to be checked
    leave()
    sock.close()
    assert people.number(SHE) == 1
    over()
    assert forks.told == [Meet(1), Forget(1)]


def test_an_event_is_told_of_a_run_that_has_ended(people: People, forks: Forks, sock: socket.socket) -> None:
    over = people.outlast(SHE, sock)
    sock.close()
    assert (people.number(SHE), forks.told) == (1, [Meet(1)])
    over()


def test_another_fork_server_is_told_of_those_who_are_there(
    people: People, forks: Forks, sock: socket.socket
) -> None:
    leave = people.keep(SHE, sock)
    gone = people.outlast(replace(SHE, uid=8), sock)
    forks.is_gone = True
    assert people.number(SHE) == 1  # the fork server refuses her, with its own message
    forks.is_gone = False
    forks.told.clear()
    people.introduce()
    assert forks.told == [Meet(1)]
    assert people.number(replace(SHE, uid=8)) == 2  # this user is unknown to the fork server
    forks.is_gone = True
    leave()
    gone()
    assert people.number(SHE) == 0


async def test_who_has_powers_is_looked_at_before_they_can_leave(
    people: People, forks: Forks, sock: socket.socket
) -> None:
    leave = people.keep(SHE, sock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(people.met, SHE)
        await trio.testing.wait_all_tasks_blocked()
        assert forks.told == [Meet(1)]
        assert not nursery.cancel_scope.cancel_called
        assert len(nursery.child_tasks) == 1
        people.note_read(1)
    await people.met(SHE)  # each user is met once
    people.introduce()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(people.met, SHE)
        await trio.testing.wait_all_tasks_blocked()
        forks.is_gone = True
        people.introduce()  # no answer comes any more
    await people.met(SHE)
    await people.met(replace(SHE, capabilities=0))  # the connection says all there is to know of this user
    leave()
