"""Many streams at once (issue: "200 concurrent streams on 2 cores without starving FUSE")."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing

from cortexfs.models.exchange.answering import RetryTerms
from cortexfs.models.exchange.wake_pace import FEW, LONGEST, TICK, Pace
from cortexfs.models.local.driver import REST
from tests.shell.asking import Turn, world
from tests.shell.provider_server import chat


def rested(pace: Pace, least: float = 0.0) -> float:
    async def main() -> float:
        began = trio.current_time()
        await pace.rest(least)
        return trio.current_time() - began

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_few_streams_do_not_rest_and_many_do_for_longer() -> None:
    # issue: "streaming is real (each provider delta is a frame at once)"
    pace = Pace()
    seconds = []
    with contextlib.ExitStack() as streams:
        for _ in range(1000):
            streams.enter_context(pace.stream())
            seconds.append(pace.seconds)
        assert seconds[:FEW] == [0] * FEW
        assert 0 < seconds[FEW] < 0.01
        assert seconds == sorted(seconds)
        assert seconds[-1] == LONGEST
        assert LONGEST / 2 <= rested(pace) <= LONGEST * 1.5
        assert rested(pace, LONGEST * 2) >= LONGEST * 2 - TICK
    assert (pace.seconds, rested(pace)) == (0, 0)


def test_the_last_of_many_streams_is_read_once_the_others_have_ended() -> None:
    pace = Pace()

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            with contextlib.ExitStack() as streams:
                for _ in range(1000):
                    streams.enter_context(pace.stream())
                nursery.start_soon(pace.rest)
                await trio.testing.wait_all_tasks_blocked()
            ended = trio.current_time()
        return trio.current_time() - ended

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01)) <= 2 * TICK


def test_an_engine_on_these_cores_is_given_its_rest() -> None:
    assert rested(Pace(), REST) == pytest.approx(REST)


async def test_what_comes_in_a_rest_is_said_all_the_same() -> None:
    words = [f"{number} " for number in range(20)]
    count = FEW + 4
    async with (
        world(chat(*words), terms=RetryTerms(tries=1)) as (made, provider),
        trio.open_nursery() as nursery,
    ):
        turns = [Turn("hi") for _ in range(count)]
        for turn in turns:
            nursery.start_soon(made.drivers.chosen(made.objects["p/m"], "exec"), turn)
    assert len(provider.requests) == count
    for turn in turns:
        assert turn.output == "".join(words)
        assert turn.types[-2:] == ["message", "usage"]
