"""Two models that need no provider: debug/echo says what it was told, debug/script plays what it was told.

They are what a new mount answers with, and what this project tests its conversations with. Both say
deltas, a message and usage; their tokens are words.

Rules: bounded memory, whatever is asked: an answer is kept for its message up to MAX_KEPT, and long ones
are said in batches, which whoever carries them may hold back.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

import re
from itertools import islice

import msgspec
import trio
from msgspec.structs import asdict

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Frame, Message, Progress, Text, ToolCall, ToolResult, Usage
from cortexfs.core.registry import Object
from cortexfs.core.talk.requests import Input, Verdict, said
from cortexfs.models import script as scripts
from cortexfs.models.ask.driver import Turn

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
        await play.play(number, step)
    await play.end(words)


def _answers(given: Input) -> int:
    """How often the newest message of the user was answered already: by an agent's model, for each call."""
    messages = given.get("messages") if isinstance(given, dict) else None
    roles = [each.get("role") for each in messages or () if isinstance(each, dict)]
    since = roles[len(roles) - roles[::-1].index("user") :] if "user" in roles else roles
    return since.count("assistant")


def _read(text: str) -> tuple[list[scripts.AnyStep], int]:
    return scripts.parse(text), _count(text)


def text_of(value: Input) -> str:
    """The text of a prompt, or of the newest message of the user; EINVAL where its shape is wrong."""
    if isinstance(value, str):
        return value
    if "messages" in value or "content" in value:
        return "".join(part.text for part in said(value))
    held = value.get("input", value.get("task", ""))
    return held if isinstance(held, str) else msgspec.json.encode(held).decode()


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

    async def play(self, number: int, step: scripts.AnyStep) -> None:
        match step:
            case scripts.DeltaStep(delta=text):
                self._keep(text)
                await self._turn.say(Delta(text=text))
            case scripts.Burst(burst=count, size=size):
                delta = Delta(text="x" * (size - 1) + " ")
                self._keep(delta.text, count)
                for first in range(0, count, BATCH):
                    await self._turn.say(*(delta,) * min(BATCH, count - first))
            case scripts.Sleep(sleep=seconds):
                await trio.sleep(seconds)
            case scripts.Hang():
                await trio.sleep_forever()
            case scripts.Fail(error=why):
                raise Fault(why.code, why.message)
            case scripts.Ask(approval=asked):
                fields = asdict(asked) | {"call": asked.call or f"call{number}"}
                told = _told(await self._turn.ask(Approval(**fields)))
                self._keep(told)
                await self._turn.say(Delta(text=told))
            case (
                scripts.CallStep()
                | scripts.ResultStep()
                | scripts.Tell()
                | scripts.Conclude()
                | scripts.Count()
            ):
                self._concluded |= isinstance(step, scripts.Conclude)
                self._counted |= isinstance(step, scripts.Count)
                await self._turn.say(_frame(number, step))


def _frame(
    number: int, step: scripts.CallStep | scripts.ResultStep | scripts.Tell | scripts.Conclude | scripts.Count
) -> Frame:
    match step:
        case scripts.CallStep(tool_call=asked):
            return ToolCall(call=asked.call or f"call{number}", name=asked.name, input=asked.input)
        case scripts.ResultStep(tool_result=gave):
            return ToolResult(**asdict(gave))
        case scripts.Tell(progress=text):
            return Progress(message=text)
        case scripts.Conclude(message=text):
            return _message(text)
        case scripts.Count(usage=counted):
            return Usage(**asdict(counted))


def _told(verdict: Verdict) -> str:
    given = "" if verdict.input is None else f" {msgspec.json.encode(verdict.input).decode()}"
    return verdict.decision + given


def _message(text: str) -> Message:
    return Message(role="assistant", content=[Text(text)])


def _count(text: str) -> int:
    return len(text.split())


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
