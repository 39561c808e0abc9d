"""Work in a thread: the loop waits a little for it, and its error reaches the caller."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from cortexfs.linux import short_waits
from cortexfs.linux.short_waits import PAUSE, PROMPT, Prompt
from tests.waiting import PATIENCE


async def test_work_is_done_in_a_thread() -> None:
    seen: list[threading.Thread] = []
    await Prompt().run(lambda: seen.append(threading.current_thread()))
    assert seen[0] is not threading.current_thread()


async def hangs(prompt: Prompt, gate: threading.Event, fails: bool = False) -> None:
    def work() -> None:
        gate.wait()
        if fails:
            raise OSError("no room")

    await prompt.run(work)


async def test_the_loop_goes_on_while_work_hangs() -> None:
    # "a disk that is slow, or hangs, holds up who called and nobody else"
    gate = threading.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hangs, Prompt(), gate)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()


@pytest.mark.parametrize("is_slow", [False, True])
async def test_an_error_is_the_caller_s_and_the_next_work_is_done(is_slow: bool) -> None:
    prompt, gate = Prompt(), threading.Event()
    if not is_slow:
        gate.set()

    async def fails() -> None:
        with pytest.raises(OSError, match="no room"):
            await hangs(prompt, gate, fails=True)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        await hangs(prompt, gate)


def test_after_slow_work_the_loop_does_not_wait_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    # "for PROMPT at most, and not again for PAUSE when that was not enough"
    waits: list[float] = []

    class Piece(short_waits._Piece):
        def comes_within(self, seconds: float) -> bool:
            waits.append(seconds)
            return super().comes_within(seconds) if len(waits) > 1 else super().comes_within(0)

    async def works() -> None:
        prompt, gate = Prompt(), threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hangs, prompt, gate)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        await hangs(prompt, gate)
        await trio.sleep(PAUSE)
        await hangs(prompt, gate)

    monkeypatch.setattr(short_waits, "_Piece", Piece)
    trio.run(works, clock=trio.testing.MockClock(autojump_threshold=0))
    assert waits == [PROMPT, 0, PROMPT]
