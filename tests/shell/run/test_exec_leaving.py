"""A run leaves nothing behind, however it ends and on whichever side."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from cortexfs.core import wire
from cortexfs.peers.streams import send
from tests.shell.calling import FAULTY, World, files_closed, open_files, serving
from tests.waiting import PATIENCE, awaited


async def _closes(world: World, inode: int) -> None:
    async with world.begun(inode):
        pass


async def _closes_when_it_runs(world: World, inode: int) -> None:
    async with world.begun(inode, "{}") as runner:
        await runner.until(b'"start"')


async def _half_closes(world: World, inode: int) -> None:
    async with world.begun(inode, "{}") as runner:
        await runner.until(b'"start"')
        runner.stream.shutdown(socket.SHUT_WR)
        answer = await runner.answer()
        assert answer.status in (0, 130)


async def _talks_rubbish(world: World, inode: int) -> None:
    with world.connected() as runner:
        await send(runner.stream, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n and more\r\n")
        assert (await runner.answer()).code == "EINVAL"


async def _sends_what_nobody_wanted(world: World, inode: int) -> None:
    async with world.begun(inode, "{}") as runner:
        await runner.until(b'"start"')
        with contextlib.suppress(BrokenPipeError):  # the run has ended already
            await send(runner.stream, wire.message(wire.STDIN, b"unasked"))
        await runner.answer()


async def _finishes(world: World, inode: int) -> None:
    assert (await world.call(inode, "{}")).status == 0


async def _is_refused(world: World, inode: int) -> None:
    assert (await world.call(inode, "a", "b", "c")).status == 2


async def _names_nothing(world: World, inode: int) -> None:
    assert (await world.call(10**9)).status == 1


async def _feeds(world: World, inode: int) -> None:
    assert (await world.call(inode, stdin=b"{}")).status == 0


ENDINGS = [
    _closes,
    _closes_when_it_runs,
    _half_closes,
    _talks_rubbish,
    _sends_what_nobody_wanted,
    _finishes,
    _is_refused,
    _names_nothing,
    _feeds,
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
async def test_200_runs_leave_no_descriptor(
    ending: Callable[[World, int], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a host that is slow to let go is replaced by another one, and a busy machine makes hosts slow
    monkeypatch.setattr("cortexfs.pool.call.LET_GO_SECONDS", PATIENCE)
    async with serving(tmp_path) as world:
        drip = world.inode("drip")
        pid = await world.pid()
        await _rounds(ending, world, drip, 5)
        gc.collect()
        before = open_files(), open_files(pid)
        await _rounds(ending, world, drip, 40)
        gc.collect()
        assert await world.pid() == pid  # it is still the same host
        await files_closed(before[0])
        await files_closed(before[1], pid)  # a worker closes its files after its answer was received
        assert not world.runs.active


async def _rounds(
    ending: Callable[[World, int], Awaitable[None]], world: World, inode: int, count: int
) -> None:
    for _ in range(count):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ending, world, inode)
        await world.idle()


async def test_hosts_that_die_leave_no_descriptor(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        exits = world.inode("bad.exit", FAULTY)
        assert (await world.call(exits, "{}")).status == 70
        await _quiet(world)
        before = open_files()
        for _ in range(20):
            assert (await world.call(exits, "{}")).status == 70
        await _quiet(world)
        await files_closed(before)


async def _quiet(world: World) -> None:
    await awaited(lambda: not len(world.pool) and not world.runs.active)


async def test_a_caller_who_leaves_while_a_host_floods(tmp_path: Path) -> None:
    # A write that fails while other tasks run raises an exception group, which must not end the service.
    async with serving(tmp_path) as world:
        flood = world.inode("bad.flood", FAULTY)
        for _ in range(10):
            async with world.begun(flood, "{}") as runner:
                await runner.until(b"flood " * 500)
        await world.idle()
        assert (await world.call(world.inode("show.types", FAULTY), "x")).status == 0
