"""The driver `plugin`: asks a model that a plugin provides, in a host of the plugin that acts as the caller.

Main path: `answer` takes a host from the pool and sends the question (models/ask/question.py, with as much of
the session as the model's limit holds). It passes on the host's messages until the call is done. In a host,
cortexfs.sdk turns the request into a ModelRequest and the model's pieces into messages (sdk/models.py).

Rules: the host has the turn's identity, and is confined where an agent asks. A host's output is untrusted
input: it is bounded, checked, and sent as frames that are created here. A host is replaced if it breaks the
protocol, or does not let go of a cancelled call.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
import trio
from msgspec.structs import asdict

from cortexfs.core import hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Frame, Message, Progress, ReasoningDelta, Text, ToolCall, Usage
from cortexfs.core.jsontext import check_depth
from cortexfs.core.registry import Object
from cortexfs.core.talk.requests import Input
from cortexfs.models.ask.driver import Driver, Turn
from cortexfs.models.ask.model import ModelEntry, NoAnswer, model_of
from cortexfs.models.ask.question import ModelInput, PromptMedia, PromptMessage, model_input
from cortexfs.models.ask.structured import Schema
from cortexfs.models.ask.window import PromptWindow
from cortexfs.pool.call import HostCall
from cortexfs.pool.pool import Pool

DRIVER = "plugin"
UMASK = 0o077  # of files that a model creates
MAX_REQUEST = 16 << 20
# Bytes of an input, and messages of a history, from which on a thread makes the request.
LARGE, MANY = 256 << 10, 1000
MAX_ANSWER = 8 << 20  # characters of text that are kept for the message
MAX_CALLS = 1000
MAX_WORD = 256  # characters of a call's id and a tool's name
MAX_TOKENS = 1 << 53
# Failures after which a fallback is model_input, if no answer has begun (docs/models.md, "Failure").
ELSEWHERE = frozenset(("EHOSTDOWN", "EREMOTEIO", "ETIMEDOUT", "EAGAIN", "EDQUOT"))

_Event: TypeAlias = ReasoningDelta | ToolCall | Usage
_events: msgspec.json.Decoder[_Event] = msgspec.json.Decoder(_Event)


class PluginModels:
    """Makes the drivers of plugins' models."""

    def __init__(self, pool: Pool, control: Callable[[Object, str], str], default_seconds: float) -> None:
        self._pool = pool
        self._control = control
        self._seconds = default_seconds

    def driver(self, object_: Object) -> Driver | None:
        return None if object_.plugin is None else partial(self._answer, object_, object_.plugin)

    async def _answer(self, object_: Object, plugin: hostcalls.Plugin, turn: Turn) -> None:
        identity = turn.who.identity
        if identity.is_elsewhere:
            why = f"{object_.name} needs a process of your own, and none can be started in a container"
            raise Fault("EACCES", f"{why}; call it from outside")
        of_team = plugin.kind == hostcalls.TEAM
        question, data = await self._question(model_of(object_, self._control), turn, of_team)
        schema = None if question.schema is None else Schema(question.schema)
        invocation = hostcalls.Invocation(object_.name, turn.who.session or None, str(turn.uid), "model")
        request = hostcalls.CallRequest("", invocation, None, data, UMASK, {}, turn.who.cwd or "/")
        answer = _Said()
        try:
            await self._run(plugin, request, object_.timeout or self._seconds, answer, turn)
        except Fault as fault:
            if fault.code in ELSEWHERE and not answer.anything:
                raise NoAnswer(fault.code, fault.message) from None
            raise
        if schema is not None:
            await trio.to_thread.run_sync(schema.check, answer.text, abandon_on_cancel=True)
        await turn.say(*answer.end())

    async def _question(self, model: ModelEntry, turn: Turn, of_team: bool) -> tuple[ModelInput, bytes]:
        window, used = PromptWindow(model.limit, None), len(msgspec.json.encode(turn.input))
        room = window.room(used)
        before = window.stable(await turn.history(room)) if room else []
        if used > LARGE or len(before) > MANY:
            return await trio.to_thread.run_sync(_prepared, model, turn.input, before, of_team)
        return _prepared(model, turn.input, before, of_team)

    async def _run(
        self,
        plugin: hostcalls.Plugin,
        request: hostcalls.CallRequest,
        seconds: float,
        answer: _Said,
        turn: Turn,
    ) -> None:
        identity = turn.who.identity

        async def pass_on(*frames: Frame) -> None:
            await turn.say(*frames)
            if answer.is_too_long:
                raise Fault("EFBIG", f"the answer is over {MAX_ANSWER >> 20} million characters")

        call = HostCall(answer.hear, pass_on)
        await call.run(self._pool, partial(self._pool.acquire_for, plugin, identity), request, seconds)
        if call.fault is not None:
            # A host's message speaks of a tool.
            raise Fault(call.fault.code, call.fault.message.replace("the tool", "the model", 1))


class _Said:
    """The part of an answer that has been received."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._size = 0
        self._calls: set[str] = set()
        self._usage: Usage | None = None
        self.anything = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def hear(self, kind: int, payload: bytes) -> Frame | None:
        """Returns one message of a host as a frame. Raises one of GARBAGE for a bad message."""
        if kind == wire.DELTA:
            return self._delta(payload.decode())
        if kind == wire.PROGRESS:
            return Progress(message=payload.decode())
        return self._event(_events.decode(payload)) if kind == wire.EVENT else None

    def end(self) -> list[Frame]:
        frames: list[Frame] = []
        if self._texts or not self._calls:
            frames.append(Message(role="assistant", content=[Text(self.text)]))
        return [*frames, self._usage] if self._usage else frames

    @property
    def is_too_long(self) -> bool:
        return self._size > MAX_ANSWER

    def _delta(self, text: str) -> Frame:
        self.anything = True
        self._texts.append(text)
        self._size += len(text)
        return Delta(text=text)

    def _event(self, event: _Event) -> Frame | None:
        match event:
            case Usage(input_tokens=input_tokens, output_tokens=output_tokens):
                if not (0 <= input_tokens < MAX_TOKENS and 0 <= output_tokens < MAX_TOKENS):
                    raise Fault(
                        "EPROTO", f"its counts of tokens are out of range: {input_tokens} and {output_tokens}"
                    )
                self._usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
                return None
            case ReasoningDelta(text=text):
                self.anything = True
                return ReasoningDelta(text=text)
            case ToolCall(call=call, name=name, input=input_):
                return self._call(call, name, input_)

    def _call(self, call: str, name: str, input_: Any) -> Frame:
        if not 0 < len(call) <= MAX_WORD or not 0 < len(name) <= MAX_WORD:
            raise Fault("EPROTO", "a tool call needs a call (its id) and a name, each of 1 to 256 characters")
        if call in self._calls or len(self._calls) >= MAX_CALLS:
            raise Fault("EPROTO", f"the model repeated the id of a tool call, or made over {MAX_CALLS} calls")
        check_depth(input_, "the input of a tool call")
        self._calls.add(call)
        self.anything = True
        return ToolCall(call=call, name=name, input=input_)


def _prepared(
    model: ModelEntry, value: Input, before: Sequence[Message], of_team: bool
) -> tuple[ModelInput, bytes]:
    question = model_input(value, before, model.system)
    data = msgspec.json.encode(_request(model, question, of_team))
    if len(data) > MAX_REQUEST:
        raise Fault("EMSGSIZE", f"the request to {model.name} is over {MAX_REQUEST >> 20} MiB; send less")
    return question, data


def _request(model: ModelEntry, question: ModelInput, of_team: bool) -> dict[str, Any]:
    """Returns the fields of sdk.ModelRequest; for a model of another machine, the prompt for its runner."""
    fields = {
        "system": question.system,
        "tools": question.tools,
        "tool_choice": question.tool_choice,
        "schema": question.schema,
        "effort": question.effort or model.effort,
    }
    parameters = model.default | question.parameters
    if not of_team:
        return {"messages": [_message(each) for each in question.said], "parameters": parameters, **fields}
    given = {name: value for name, value in fields.items() if value not in (None, "", ())}
    return parameters | {"messages": question.said} | given


def _message(prompt: PromptMessage) -> dict[str, Any]:
    return {
        "role": prompt.role,
        "text": prompt.text,
        "media": [asdict(part) for part in prompt.parts if isinstance(part, PromptMedia)],
        "calls": prompt.calls,
        "call": prompt.call,
        "is_error": prompt.is_error,
    }
