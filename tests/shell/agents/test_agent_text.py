"""A run whose model has no native tool calls, and whose replies may be neither a call nor an answer."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Message
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Turn as Question
from tests.shell.agent_runs import MODEL, Played, run


class Plain(Played):
    """A world in which the model's `.d/cap` is empty."""

    def control(self, object_: Object, name: str) -> str:
        return "" if (object_, name) == (MODEL, "cap") else super().control(object_, name)


class Held(Played):
    """A world in which the model's `.d/cap` is that of a local model."""

    def control(self, object_: Object, name: str) -> str:
        held = (object_, name) == (MODEL, "cap")
        return "chat\njson_schema\ngrammar\n" if held else super().control(object_, name)


async def output() -> str:
    return "never"


async def test_answers_in_a_row_that_are_no_calls_end_it() -> None:
    # agents.md: "EBADMSG at over 3 answers in a row that are neither a call nor an answer"
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


async def test_one_that_can_be_held_to_any_json_answers_in_plain_words() -> None:
    asked: list[str] = []
    answers = ['{"tool": "fs.read", "input": {}}', '"It says \\"hi\\"."']

    async def answer(turn: Question) -> None:
        asked.append(str(turn.input))
        await turn.say(Delta(text=answers.pop(0)))

    world = Held(answer, output)
    turn = await run(world)
    assert (turn.output, world.ran) == ('It says "hi".', 1)
    assert "answer in plain words" in asked[0]
    assert "{'type': 'string'}" in asked[0]


A, B = ('{"tool": "fs.read", "input": {"path": "' + path + '"}}' for path in "ab")


@pytest.mark.parametrize("made", [[A, A], [A, B, A, B, A]])
async def test_one_that_repeats_its_call_is_held_to_an_answer(made: list[str]) -> None:
    # agents.md: "After the same call twice in a row, or three times in a run, only an answer is asked for"
    answers = [*made, '"It is empty."']
    asked: list[bool] = []

    async def answer(turn: Question) -> None:
        asked.append("'const': 'fs.read'" in str(turn.input))
        await turn.say(Delta(text=answers.pop(0)))

    world = Held(answer, output)
    turn = await run(world)
    assert (turn.output, world.ran) == ("It is empty.", len(made))
    assert asked == [True] * len(made) + [False]


async def test_a_plain_answer_is_told_as_it_comes() -> None:
    # issue: "streaming is real (each provider delta is a frame at once)"
    async def answer(turn: Question) -> None:
        for piece in ('"It ', 'says \\"h', 'i\\"', '."'):
            await turn.say(Delta(text=piece))

    turn = await run(Held(answer, output))
    told = [frame.text for frame in turn.frames if isinstance(frame, Delta)]
    assert told == ["It ", 'says "h', 'i"', "."]
    (said,) = (frame for frame in turn.frames if isinstance(frame, Message))
    assert "".join(part.text for part in said.content) == 'It says "hi".'
