"""Two models that need no provider: debug/echo repeats its prompt, debug/script plays its prompt as a script.

A new mount answers with them, and this project tests its conversations with them. Both send deltas, a message
and usage; their tokens are words. A script is a list of steps, one JSON object each. All steps are checked
before the first is played.

Rules: memory is bounded for every prompt. An answer is kept for its message up to MAX_KEPT, and a long answer
is sent in batches, which the receiver may hold back. The keys of STEPS are the steps, and docs/ctx.md has the
same table. An error names the number of its step, from 1 on. A short script can ask for a long answer by
bursts, so these are bounded over the whole script.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any

import msgspec
import trio
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault, is_code
from cortexfs.core.frames import Approval, Delta, Message, Progress, Text, ToolCall, ToolResult, Usage
from cortexfs.core.registry import Object
from cortexfs.core.talk.requests import Input, Verdict, newest_text
from cortexfs.models.ask.driver import Turn

MAX_SCRIPT = 1 << 20  # characters: as much as a line of a socket can hold
MAX_STEPS = 10_000
MAX_SLEEP = 3600.0  # seconds of one step; `hang` is the step that waits for ever
MAX_BURST = 1_000_000  # deltas of all bursts of a script: a session keeps each delta
MAX_BURST_BYTES = 256 << 20
EXAMPLE = '[{"delta":"Hello"},{"sleep":0.5},{"delta":" again"}]'


class ScriptCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input: Any = {}
    call: str | None = None


class ScriptResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    call: str
    output: str = ""
    is_error: bool = False


class ScriptFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    message: str


class ScriptApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input: Any = {}
    effects: list[str] = []
    reason: str = ""
    call: str | None = None


class ScriptUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_tokens: Annotated[int, msgspec.Meta(ge=0)]
    output_tokens: Annotated[int, msgspec.Meta(ge=0)]


class ScriptStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step. One field is set, which is the key that names it; a burst has `size` besides."""

    delta: str | UnsetType = UNSET
    sleep: Annotated[float, msgspec.Meta(ge=0, le=MAX_SLEEP)] | UnsetType = UNSET
    tool_call: ScriptCall | UnsetType = UNSET
    tool_result: ScriptResult | UnsetType = UNSET
    error: ScriptFailure | UnsetType = UNSET
    hang: bool | UnsetType = UNSET
    burst: Annotated[int, msgspec.Meta(ge=1, le=MAX_BURST)] | UnsetType = UNSET
    message: str | UnsetType = UNSET
    approval: ScriptApproval | UnsetType = UNSET
    usage: ScriptUsage | UnsetType = UNSET
    progress: str | UnsetType = UNSET
    turn: bool | UnsetType = UNSET
    size: Annotated[int, msgspec.Meta(ge=1, le=64 << 10)] = 32


*STEPS, SIZE = ScriptStep.__struct_fields__


def parse(text: str) -> list[ScriptStep]:
    """Returns the steps of a script. Raises a Fault that names the wrong step and the reason."""
    if len(text) > MAX_SCRIPT:
        raise Fault("EMSGSIZE", f"the script is over {MAX_SCRIPT >> 20} MiB; write long answers as bursts")
    value = _list(text)
    if len(value) > MAX_STEPS:
        raise Fault("EINVAL", f"the script has {len(value)} steps, over the limit of {MAX_STEPS}")
    steps = [_step(fields, f"step {number}") for number, fields in enumerate(value, 1)]
    bursts = [(step.burst, step.size) for step in steps if step.burst is not UNSET]
    if sum(count for count, _ in bursts) > MAX_BURST:
        raise Fault("EINVAL", f"the bursts are over {MAX_BURST} deltas together")
    if sum(count * size for count, size in bursts) > MAX_BURST_BYTES:
        raise Fault("EINVAL", f"the bursts are over {MAX_BURST_BYTES >> 20} MiB together")
    return steps


def part_of(steps: list[ScriptStep], number: int) -> list[tuple[int, ScriptStep]]:
    """Returns the steps of one part of a script, with their numbers. A part ends with a `turn` step."""
    ends = [at for at, step in enumerate(steps) if step.turn] + [len(steps)]
    if number >= len(ends):
        return []
    first = ends[number - 1] + 1 if number else 0
    return [(at + 1, steps[at]) for at in range(first, ends[number])]


def _list(text: str) -> list[Any]:
    try:
        value = jsontext.decode(text, "the script")
    except Fault as fault:
        raise Fault(fault.code, f"{fault.message}; a script is a list of steps such as {EXAMPLE}") from None
    if not isinstance(value, list):
        found = jsontext.type_name(value)
        raise Fault("EINVAL", f"the script: expected a list of steps such as {EXAMPLE}, got {found}")
    return value


def _step(fields: Any, where: str) -> ScriptStep:
    if not isinstance(fields, dict):
        raise Fault("EINVAL", f"{where}: expected an object, got {jsontext.type_name(fields)}")
    kinds = [key for key in fields if key in STEPS]
    if len(kinds) != 1:
        raise Fault(
            "EINVAL", f"{where}: expected one of {', '.join(STEPS)}; got {jsontext.shown(list(fields))}"
        )
    if SIZE in fields and kinds != ["burst"]:
        raise Fault("EINVAL", f"{where}: {SIZE}: only a burst has one")
    try:
        step: ScriptStep = jsontext.converted(fields, ScriptStep)
    except Fault as fault:
        raise Fault("EINVAL", jsontext.clipped(f"{where}: {fault.message}")) from None
    _check(step, where)
    return step


def _check(step: ScriptStep, where: str) -> None:
    """Raises a Fault for a wrong value that the types of the steps allow."""
    if step.turn is False:
        raise Fault("EINVAL", f"{where}: turn: expected true")
    if step.hang is False:
        raise Fault("EINVAL", f"{where}: hang: expected true")
    if step.error and (not is_code(step.error.code) or step.error.code == "ECANCELED"):
        code = jsontext.shown(step.error.code)
        raise Fault("EINVAL", f"{where}: error.code: expected an errno name such as EIO, got {code}")


# Deltas in one `say`: enough to make the cost of a `say` small, few enough to keep other tasks from waiting.
BATCH = 256
# Characters of a script's deltas that are kept for its message. A longer answer gets no message by itself,
# as a thousand clients may play at once.
MAX_KEPT = 64 << 10
LARGE = 16 << 10  # characters from which on a thread parses the script, so that other tasks do not wait

_WORD = re.compile(r"\S+\s*|\s+")


async def echo(turn: Turn) -> None:
    """Repeat the prompt's text, with a delta for each word."""
    text = text_of(turn.input)
    if not text:
        raise Fault("EINVAL", "the prompt has no text to repeat")
    words = (Delta(text=found[0]) for found in _WORD.finditer(text))
    count = 0
    while batch := tuple(islice(words, BATCH)):
        await turn.say(*batch)
        count += len(batch)
    await turn.say(_message(text), Usage(input_tokens=count, output_tokens=count))


async def script(turn: Turn) -> None:
    """Play the script in the prompt's text (docs/ctx.md has the table of its steps)."""
    text = text_of(turn.input)
    large = len(text) > LARGE
    steps, words = await trio.to_thread.run_sync(_read, text) if large else _read(text)
    play = _Play(turn)
    for number, step in part_of(steps, _answers(turn.input)):
        await play.play(number, step)
    await play.end(words)


def _answers(value: Input) -> int:
    """Returns how many answers follow the user's newest message: an agent's model answers after each call."""
    messages = value.get("messages") if isinstance(value, dict) else None
    roles = [each.get("role") for each in messages or () if isinstance(each, dict)]
    since = roles[len(roles) - roles[::-1].index("user") :] if "user" in roles else roles
    return since.count("assistant")


def _read(text: str) -> tuple[list[ScriptStep], int]:
    return parse(text), _count(text)


def text_of(value: Input) -> str:
    """Returns the text of a prompt, or of the user's newest message. Raises EINVAL for a wrong shape."""
    if isinstance(value, str):
        return value
    if "messages" in value or "content" in value:
        return "".join(part.text for part in newest_text(value))
    text = value.get("input", value.get("task", ""))
    return text if isinstance(text, str) else msgspec.json.encode(text).decode()


class _Play:
    """A script that is being played, and the part of its answer that is kept."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._texts: list[str] = []
        self._size = 0
        self._words = 0
        self._concluded = self._counted = False

    async def end(self, words: int) -> None:
        """Send the message and the usage, except where a step has sent them."""
        if self._size and self._size <= MAX_KEPT and not self._concluded:
            await self._turn.say(_message("".join(self._texts)))
        if not self._counted:
            await self._turn.say(Usage(input_tokens=words, output_tokens=self._words))

    def _keep(self, text: str, times: int = 1) -> None:
        self._size += len(text) * times
        self._words += _count(text) * times
        if self._size <= MAX_KEPT:
            self._texts.append(text * times)
        else:
            self._texts.clear()

    async def play(self, number: int, step: ScriptStep) -> None:
        match step:
            case ScriptStep(delta=str(text)):
                self._keep(text)
                await self._turn.say(Delta(text=text))
            case ScriptStep(burst=int(count), size=size):
                delta = Delta(text="x" * (size - 1) + " ")
                self._keep(delta.text, count)
                for first in range(0, count, BATCH):
                    await self._turn.say(*(delta,) * min(BATCH, count - first))
            case ScriptStep(sleep=float(seconds)):
                await trio.sleep(seconds)
            case ScriptStep(hang=True):
                await trio.sleep_forever()
            case ScriptStep(error=ScriptFailure(code=code, message=why)):
                raise Fault(code, why)
            case ScriptStep(approval=ScriptApproval() as question):
                fields = asdict(question) | {"call": question.call or f"call{number}"}
                answer = _verdict_text(await self._turn.ask(Approval(**fields)))
                self._keep(answer)
                await self._turn.say(Delta(text=answer))
            case ScriptStep(tool_call=ScriptCall(name=name, input=input_, call=call)):
                await self._turn.say(ToolCall(call=call or f"call{number}", name=name, input=input_))
            case ScriptStep(tool_result=ScriptResult() as result):
                await self._turn.say(ToolResult(**asdict(result)))
            case ScriptStep(progress=str(text)):
                await self._turn.say(Progress(message=text))
            case ScriptStep(message=str(text)):
                self._concluded = True
                await self._turn.say(_message(text))
            case ScriptStep(usage=ScriptUsage() as counted):
                self._counted = True
                await self._turn.say(Usage(**asdict(counted)))


def _verdict_text(verdict: Verdict) -> str:
    input_ = "" if verdict.input is None else f" {msgspec.json.encode(verdict.input).decode()}"
    return verdict.decision + input_


def _message(text: str) -> Message:
    return Message(role="assistant", content=[Text(text)])


def _count(text: str) -> int:
    return len(text.split())


def objects(registered: float) -> list[Object]:
    """Returns the two models as objects of the registry."""
    return [
        _object("echo", "chat stream session", ECHO, registered),
        _object("script", "chat stream session tool_call_syntax", SCRIPT, registered),
    ]


ECHO = "Repeats your prompt, word by word: a model without a provider, to see how models work."
SCRIPT = (
    f"Plays a list of steps, to test how a program handles an answer. Its prompt is JSON: {EXAMPLE}."
    f" The steps are {', '.join(STEPS)}."
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
