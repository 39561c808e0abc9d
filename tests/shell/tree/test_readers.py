"""The requests waiting on a file, for a reader that must not wait (cortexfs/tree/readers.py)."""

from __future__ import annotations

import os
import select

import trio
import trio.testing

from cortexfs.tree.readers import AT_ONCE, KernelRequests
from tests.waiting import PATIENCE

ROUNDS = 30


async def test_a_request_that_was_taken_back_is_none() -> None:
    """Trio decides if the request goes before or after it is found, so the test makes many rounds."""
    requests = KernelRequests()
    channel, to = os.pipe()
    taken = os.dup(channel)

    async def read() -> None:
        await requests.have_come(channel)
        found.append(bool(select.select([channel], [], [], 0)[0]))

    async def take_back() -> None:
        await trio.lowlevel.wait_readable(taken)
        os.read(taken, 1)

    for _ in range(ROUNDS):
        found: list[bool] = []
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                async with trio.open_nursery() as others:
                    others.start_soon(take_back)
                    await trio.testing.wait_all_tasks_blocked()
                    os.write(to, b"1")
                os.write(to, b"2")
        assert found == [True]
        os.read(channel, 1)
    for end in (channel, taken, to):
        os.close(end)


async def test_more_than_a_few_at_once_wait_for_a_turn_of_the_loop() -> None:
    requests = KernelRequests()
    channel, to = os.pipe()
    os.write(to, b"1")
    await requests.have_come(channel)
    with trio.CancelScope() as scope:
        scope.cancel()
        for _ in range(AT_ONCE + 1):
            await requests.have_come(channel)
    assert scope.cancelled_caught
    os.close(channel)
    os.close(to)
