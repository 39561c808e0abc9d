"""Work in a thread for which the loop waits a little, and whose an error is."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from cortexfs import threads
from cortexfs.threads import PROMPT, Prompt
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


async def test_the_loop_waits_for_work_that_is_as_quick_as_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # "for PROMPT at most and only when the last work was as quick"
    waits: list[float] = []

    class Piece(threads._Piece):
        def comes_within(self, seconds: float) -> bool:
            waits.append(seconds)
            return super().comes_within(seconds)

        @property
        def took(self) -> float:
            return 2 * PROMPT if len(waits) == 1 else 0

        @took.setter
        def took(self, value: float) -> None:
            pass

    monkeypatch.setattr(threads, "_Piece", Piece)
    prompt = Prompt()
    for _ in range(3):
        await prompt.run(lambda: None)
    assert waits == [PROMPT, 0, PROMPT]
