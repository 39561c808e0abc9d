"""peers/prompt.py: conversations that end so soon that a task of their own would not pay."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from cortexfs.peers.prompt import MOMENT, Bell, ShortConversations, in_task, is_readable, notify
from tests.waiting import PATIENCE


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@asynccontextmanager
async def prompt() -> AsyncIterator[ShortConversations]:
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            made = ShortConversations(nursery)
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()


def clock() -> trio.testing.MockClock:
    """A clock that jumps to the next deadline."""
    return trio.testing.MockClock(autojump_threshold=0.01)


async def test_one_that_need_not_wait_is_over_at_once() -> None:
    said = []

    async def talk() -> None:
        said.append("all")

    async with prompt() as made:
        made.begin(talk())
        assert said == ["all"]


async def test_one_that_is_answered_within_a_moment_is_never_a_task(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    over = trio.Event()
    here = trio.lowlevel.current_task()
    tasks = []

    async def talk() -> None:
        assert await is_readable(ours)
        tasks.append(trio.lowlevel.current_task())
        over.set()

    async with prompt() as made:
        made.begin(talk())
        theirs.send(b".")
        await over.wait()
    assert tasks
    assert tasks != [here]
    assert tasks[0].name.endswith("ShortConversations.run")


async def test_one_that_is_not_goes_on_as_a_task(pair: tuple[socket.socket, socket.socket]) -> None:
    over = trio.Event()

    async def talk() -> None:
        assert not await is_readable(pair[0])
        await in_task()
        assert not await is_readable(pair[0]), "in a task nobody waits a moment"
        await trio.lowlevel.checkpoint()
        over.set()

    async with prompt() as made:
        made.begin(talk())
        await over.wait()


async def test_one_that_is_told_something_goes_on_where_it_is_told() -> None:
    bells: list[Callable[[], object]] = []
    said = []

    async def wait(number: int) -> None:
        await notify(bells.append)
        said.append(number)

    async def tell() -> None:
        for bell in bells:
            bell()
        said.append(0)

    async with prompt() as made:
        made.begin(wait(1))
        made.begin(wait(2))
        assert said == []
        made.begin(tell())
        assert said == [0, 1, 2], "one after the other"
        bells[0]()
    assert said == [0, 1, 2], "it is told once"


async def test_a_task_is_told_too() -> None:
    with trio.fail_after(PATIENCE):
        await notify(lambda bell: bell())


async def test_one_that_is_not_told_is_cancelled_with_the_others() -> None:
    over = []

    async def wait() -> None:
        try:
            await notify(lambda bell: None)
        finally:
            over.append(True)

    async with prompt() as made:
        made.begin(wait())
        await trio.lowlevel.checkpoint()
    assert over


async def test_one_that_waits_is_cancelled_with_the_others(pair: tuple[socket.socket, socket.socket]) -> None:
    said = []

    async def talk() -> None:
        try:
            await is_readable(pair[0])
            await in_task()
            await trio.sleep_forever()
        except trio.Cancelled:
            said.append("cancelled")
            raise

    async with prompt() as made:
        made.begin(talk())
        await trio.lowlevel.checkpoint()
    assert said == ["cancelled"]


async def test_what_it_raises_is_raised_where_it_goes_on() -> None:
    async def talk() -> None:
        raise ZeroDivisionError

    async with prompt() as made:
        with pytest.raises(ZeroDivisionError):
            made.begin(talk())


async def test_who_raises_leaves_nobody_waiting() -> None:
    bells: list[Callable[[], object]] = []
    said = []

    async def wait(number: int) -> None:
        await notify(bells.append)
        if number == 0:
            raise ZeroDivisionError
        said.append(number)

    async def tell() -> None:
        for bell in bells:
            bell()

    async with prompt() as made:
        for number in range(3):
            made.begin(wait(number))
        with pytest.raises(ZeroDivisionError):
            made.begin(tell())
        assert said == [1, 2]


async def test_a_bell_is_heard_without_a_task() -> None:
    bell = Bell()
    said = []

    async def wait() -> None:
        said.append(await bell.rings_soon())
        said.append(await bell.rings_soon())

    bell.ring()  # nobody waits for it
    async with prompt() as made:
        made.begin(wait())
        assert said == []
        bell.ring()
        assert said == [True]
        bell.ring()
        assert said == [True, True]


def test_who_hears_no_bell_within_a_moment_goes_on_as_a_task() -> None:
    said = []

    async def main() -> None:
        bell = Bell()
        over = trio.Event()

        async def wait() -> None:
            said.append(await bell.rings_soon())
            await in_task()
            said.append(await bell.rings_soon())
            await bell.rung()
            over.set()

        async with prompt() as made:
            made.begin(wait())
            await trio.sleep(2 * MOMENT)
            assert not over.is_set()
            bell.ring()
            await over.wait()

    trio.run(main, clock=clock())
    assert said == [False, False], "in a task nobody waits a moment"


def test_a_conversation_may_wait_longer_than_a_moment(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    said = []

    async def talk() -> None:
        said.append(await is_readable(ours, 100 * MOMENT))
        said.append(await is_readable(ours, 100 * MOMENT))

    async def main() -> None:
        async with prompt() as made:
            made.begin(talk())
            await trio.sleep(50 * MOMENT)
            assert said == []
            theirs.send(b".")
            await trio.testing.wait_all_tasks_blocked()
            assert said == [True, True]
            ours.recv(1)
            made.begin(talk())
            await trio.sleep(102 * MOMENT)
            assert said == [True, True, False, False]

    trio.run(main, clock=clock())
