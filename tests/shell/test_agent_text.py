"""A run whose model has no tool calls of its own, and answers with what is neither a call nor an answer."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta
from cortexfs.core.registry import Object
from cortexfs.models.driver import Turn as Question
from tests.shell.agent_runs import MODEL, Played, run


class Plain(Played):
    """Its model's `.d/cap` is empty."""

    def control(self, object_: Object, name: str) -> str:
        return "" if (object_, name) == (MODEL, "cap") else super().control(object_, name)


async def output() -> str:
    return "never"


async def test_answers_in_a_row_that_are_no_calls_end_it() -> None:
    # agents.md: "answers in a row that are neither a call nor an answer | 3 | ... | EBADMSG"
    asked: list[str] = []

    async def answer(turn: Question) -> None:
        asked.append(str(turn.input))
        await turn.say(Delta(text='{"tool": "fs.read", "input": 7}'))

    world = Plain(answer, output)
    with pytest.raises(Fault, match="neither a call nor an answer") as raised:
        await run(world)
    assert (raised.value.code, len(asked), world.ran) == ("EBADMSG", 4, 0)
    assert "Your reply was not understood" in asked[1]


async def test_one_that_does_better_the_next_time_goes_on() -> None:
    # agents.md: "An object that is cut off ... is answered with what was wrong"
    answers = ['{"tool": "fs.read", "inp', '{"tool": "fs.read", "input": {}}', '{"answer": "read"}']

    async def answer(turn: Question) -> None:
        await turn.say(Delta(text=answers.pop(0)))

    world = Plain(answer, output)
    turn = await run(world)
    assert (turn.output, world.ran, answers) == ("read", 1, [])
