"""A run of an agent that is cancelled at each place where it waits: it ends, and does nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from cortexfs.agents.window.context import FormerContext, Summary
from cortexfs.core.frames import Delta
from cortexfs.models.ask.driver import Turn as Question
from tests.shell.agent_runs import ANSWER, CALL, InMemory, Played, hangs, run, says, turns
from tests.shell.asking import Turn
from tests.waiting import PATIENCE

LONG = "line\n" * 10_000


class Slow(InMemory):
    """One method sets `reached` in its thread, then waits there until the test sets `let_go`."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self._method = method

    def load(self) -> FormerContext:
        self._wait("load")
        return super().load()

    def write_summary(self, summary: Summary) -> None:
        self._wait("write_summary")
        super().write_summary(summary)

    def write_pack(self, pack: bytes) -> None:
        self._wait("write_pack")

    def spill(self, call: str, text: str) -> str:
        self._wait("spill")
        return super().spill(call, text)

    def _wait(self, method: str) -> None:
        if method == self._method:
            self.reached.set()
            assert self.let_go.wait(PATIENCE)


def calling(then: Callable[[Question], Any] = ANSWER) -> Callable[[Question], Any]:
    """Returns a model that first calls the tool, and then answers by `then`."""
    asked = 0

    async def answer(turn: Question) -> None:
        nonlocal asked
        asked += 1
        await (says(CALL) if asked == 1 else then)(turn)

    return answer


async def output() -> str:
    return LONG


def summing(turn: Question) -> bool:
    return "You write notes" in str(turn.input)


async def summary_hangs(turn: Question) -> None:
    await (hangs if summing(turn) else ANSWER)(turn)


# The places where a run waits in a coroutine: a factory of its world, and the number of earlier turns.
WAITS: dict[str, tuple[Callable[[], Played], int]] = {
    "the model answers": (lambda: Played(hangs, output), 0),
    "a tool runs": (lambda: Played(calling(), hangs), 0),
    "after a call": (lambda: Played(calling(hangs), output, InMemory()), 0),
    "a summary is made": (lambda: Played(summary_hangs, output, InMemory()), 40),
}


@pytest.mark.parametrize("where", WAITS)
async def test_a_cancel_ends_it_where_it_waits(where: str) -> None:
    # agents.md: "A cancel ends the run within a second, wherever it is."
    make, before = WAITS[where]
    world = make()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, world, "go", turns(before, 300))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert world.begun.of(1000, "agent/coder")
        nursery.cancel_scope.cancel()
    assert not world.begun.of(1000, "agent/coder")
    assert world.ran == (0 if where in ("the model answers", "a summary is made") else 1)


@pytest.mark.parametrize("method", ["load", "write_pack", "write_summary", "spill"])
async def test_a_cancel_while_a_file_is_written_leaves_it_whole(method: str) -> None:
    # window.py: "this file gets what planning needs from the disk, in a thread", which ends and is counted
    files = Slow(method)
    model = calling() if method == "spill" else ANSWER
    world = Played(model, output, files)
    said: list[Turn] = []

    async def work() -> None:
        said.append(await run(world, "go", turns(40 if method == "write_summary" else 0, 300)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await trio.to_thread.run_sync(files.reached.wait, 30)
        nursery.cancel_scope.cancel()
        files.let_go.set()
    assert said == []
    assert files.outputs == ([LONG] if method == "spill" else [])
    assert world.grown == (len(LONG) if method == "spill" else 0)
    assert len(files.summaries) == (method == "write_summary")
    assert not world.begun.of(1000, "agent/coder")


async def test_without_a_cancel_they_all_come_to_their_end() -> None:
    world = Played(calling(), output, InMemory())
    turn = await run(world)
    assert [frame.text for frame in turn.frames if isinstance(frame, Delta)] == ["done"]
    assert (world.ran, world.grown) == (1, len(LONG))
