"""Two models that need no provider: debug/echo says what it was told, debug/script plays what it was told.

They are what a new mount answers with, and what this project tests its conversations with. Both say
deltas, a message and usage; their tokens are words.

Rules: bounded memory, whatever is asked: an answer is kept for its message up to MAX_KEPT, and long ones
are said in batches, which whoever carries them may hold back.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Message, Progress, Text, ToolCall, ToolResult, Usage
from cortexfs.core.registry import Object
from cortexfs.core.talk.requests import Input
from cortexfs.models import script as scripts
from cortexfs.models.ask.driver import Turn
from cortexfs.models.ask.prompt import text_of

# Deltas in one `say`: enough that its own cost does not count, few enough that others are not kept waiting.
BATCH = 256
# Characters of a script's deltas that are kept for its message; what says more says no message of
# itself. A thousand clients may play at once.
MAX_KEPT = 64 << 10
LARGE = 16 << 10  # characters that are parsed in a thread: others wait no more than the rest takes

_WORD = re.compile(r"\S+\s*|\s+")


async def echo(turn: Turn) -> None:
    """Say the prompt's text again, a delta for each word."""
    text = text_of(turn.input)
    if not text:
        raise Fault("EINVAL", "the prompt holds no text that could be said again")
    words = (Delta(text=found[0]) for found in _WORD.finditer(text))
    count = 0
    while batch := tuple(islice(words, BATCH)):
        await turn.say(*batch)
        count += len(batch)
    await turn.say(_message(text), Usage(input_tokens=count, output_tokens=count))


async def script(turn: Turn) -> None:
    """Play the steps that the prompt's text is (docs/ctx.md has the table)."""
    text = text_of(turn.input)
    large = len(text) > LARGE
    steps, words = await trio.to_thread.run_sync(_read, text) if large else _read(text)
    play = _Play(turn)
    for number, step in scripts.part(steps, _answers(turn.input)):
        await _PLAYED[type(step)](play, number, step)
    await play.end(words)


def _answers(given: Input) -> int:
    """How often the newest message of the user was answered already: by an agent's model, for each call."""
    messages = given.get("messages") if isinstance(given, dict) else None
    roles = [each.get("role") for each in messages or () if isinstance(each, dict)]
    said = roles[len(roles) - roles[::-1].index("user") :] if "user" in roles else roles
    return said.count("assistant")


def _read(text: str) -> tuple[list[scripts.AnyStep], int]:
    return scripts.parse(text), _count(text)


class _Play:
    """A script being played, and what of its answer is kept."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._kept: list[str] = []
        self._size = 0
        self._words = 0
        self._concluded = self._counted = False

    async def end(self, words: int) -> None:
        """The message and the usage that no step has said."""
        if self._size and self._size <= MAX_KEPT and not self._concluded:
            await self._turn.say(_message("".join(self._kept)))
        if not self._counted:
            await self._turn.say(Usage(input_tokens=words, output_tokens=self._words))

    def _keep(self, text: str, times: int = 1) -> None:
        self._size += len(text) * times
        self._words += _count(text) * times
        if self._size <= MAX_KEPT:
            self._kept.append(text * times)
        else:
            self._kept.clear()

    async def say(self, number: int, step: scripts.DeltaStep) -> None:
        self._keep(step.delta)
        await self._turn.say(Delta(text=step.delta))

    async def sleep(self, number: int, step: scripts.Sleep) -> None:
        await trio.sleep(step.sleep)

    async def call(self, number: int, step: scripts.CallStep) -> None:
        asked = step.tool_call
        call = asked.call or f"call{number}"
        await self._turn.say(ToolCall(call=call, name=asked.name, input=asked.input))

    async def result(self, number: int, step: scripts.ResultStep) -> None:
        gave = step.tool_result
        said = ToolResult(call=gave.call, name=gave.name, output=gave.output, is_error=gave.is_error)
        await self._turn.say(said)

    async def fail(self, number: int, step: scripts.Fail) -> None:
        raise Fault(step.error.code, step.error.message)

    async def hang(self, number: int, step: scripts.Hang) -> None:
        await trio.sleep_forever()

    async def burst(self, number: int, step: scripts.Burst) -> None:
        delta = Delta(text="x" * (step.size - 1) + " ")
        self._keep(delta.text, step.burst)
        for size in _batches(step.burst):
            await self._turn.say(*(delta,) * size)

    async def conclude(self, number: int, step: scripts.Conclude) -> None:
        self._concluded = True
        await self._turn.say(_message(step.message))

    async def ask(self, number: int, step: scripts.Ask) -> None:
        asked = step.approval
        verdict = await self._turn.ask(
            Approval(
                call=asked.call or f"call{number}",
                name=asked.name,
                input=asked.input,
                effects=asked.effects,
                reason=asked.reason,
            )
        )
        told: str = verdict.decision
        if verdict.input is not None:
            told += f" {msgspec.json.encode(verdict.input).decode()}"
        self._keep(told)
        await self._turn.say(Delta(text=told))

    async def count(self, number: int, step: scripts.Count) -> None:
        self._counted = True
        counted = step.usage
        await self._turn.say(Usage(input_tokens=counted.input_tokens, output_tokens=counted.output_tokens))

    async def tell(self, number: int, step: scripts.Tell) -> None:
        await self._turn.say(Progress(message=step.progress))


_PLAYED: dict[type[scripts.AnyStep], Callable[[_Play, int, Any], Awaitable[None]]] = {
    scripts.DeltaStep: _Play.say,
    scripts.Sleep: _Play.sleep,
    scripts.CallStep: _Play.call,
    scripts.ResultStep: _Play.result,
    scripts.Fail: _Play.fail,
    scripts.Hang: _Play.hang,
    scripts.Burst: _Play.burst,
    scripts.Conclude: _Play.conclude,
    scripts.Ask: _Play.ask,
    scripts.Count: _Play.count,
    scripts.Tell: _Play.tell,
}


def _message(text: str) -> Message:
    return Message(role="assistant", content=[Text(text)])


def _count(text: str) -> int:
    return len(text.split())


def _batches(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, BATCH)
        count -= BATCH


def objects(registered: float) -> list[Object]:
    """The two models, as the registry has them."""
    return [
        _object("echo", "chat stream session", ECHO, registered),
        _object("script", "chat stream session tool_call_syntax", SCRIPT, registered),
    ]


ECHO = "Says what you said, word by word: a model without a provider, to see how models work."
SCRIPT = (
    f"Plays a list of steps, to try how a program takes an answer. Its prompt is JSON: {scripts.EXAMPLE}."
    f" The steps are {', '.join(scripts.STEPS)}."
)


def _object(name: str, cap: str, description: str, registered: float) -> Object:
    controls = {
        "id": name,
        "driver": f"debug.{name}",
        "cap": cap.replace(" ", "\n"),
        "session": "socket",
    }
    return Object(
        class_="model",
        name=f"debug/{name}",
        description=description,
        registered=registered,
        extra=controls,
    )
