"""The clock of a run, which stands still while a person decides."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from cortexfs.agents.calls import RunClock


async def _asked(clock: RunClock) -> None:
    async with clock:
        await trio.sleep(100)


def test_the_time_stands_still_while_a_person_decides() -> None:
    # config.md: "waiting for a person does not count"
    async def run() -> tuple[float, bool]:
        clock = RunClock(10)
        with clock.scope:
            await trio.sleep(4)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_asked, clock)  # the clock takes the two in turn
                nursery.start_soon(_asked, clock)
            await trio.sleep_forever()
        return trio.current_time(), clock.scope.cancelled_caught

    assert trio.run(run, clock=MockClock(autojump_threshold=0)) == (4 + 200 + 6, True)
