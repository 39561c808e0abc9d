"""The format of a driver: how a request looks, and how a stream of events becomes frames.

    body = format.request(model, asked)
    reader = format.reader(asked)
    for event in events: frames = reader.read(event)
    frames = reader.end()              the message; a fault when the stream was cut

Rules: formats are pure and know no connection. A reader says deltas at once, tool calls whole, and keeps
the text for its message up to MAX_ANSWER. What a provider sends is a stranger's word: what cannot be read
is EREMOTEIO, and events that it does not know are nothing.
This file must never know which providers there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame, Message, Progress, Text, ToolCall, Usage
from cortexfs.core.models.sse import ServerEvent
from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import ModelInput

MAX_ANSWER = 64 << 20  # characters of an answer; a provider that says more is broken
MAX_CALLS = 1000  # tool calls of one answer

T = TypeVar("T")


class FormatReader(Protocol):
    def read(self, event: ServerEvent) -> list[Frame]:
        """Returns the frames of an event; raises Refused for an error that the provider tells in its
        stream."""

    def end(self) -> list[Frame]:
        """The stream has ended: what is left to say."""

    @property
    def ended(self) -> bool:
        """Returns True if the answer is whole."""

    @property
    def text(self) -> str:
        """Returns the text of the answer."""


class Format(NamedTuple):
    request: Callable[[ModelEntry, ModelInput], dict[str, Any]]
    reader: Callable[[ModelInput], FormatReader]


class ProviderRefusal(Exception):
    """An error that a provider told in the midst of its stream, as it told it."""

    def __init__(self, body: bytes, status: int = 0) -> None:
        super().__init__("the provider told an error in its stream")
        self.body = body
        self.status = status


class FormatAnswer:
    """An answer on its way, whatever the format."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._size = 0
        self._calls: dict[Any, _Call] = {}
        self._said_calls = 0
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None

    @property
    def text(self) -> str:
        return "".join(self._text)

    def add(self, text: str) -> None:
        self._text.append(text)
        self.bound(len(text))

    def bound(self, size: int) -> None:
        self._size += size
        if self._size > MAX_ANSWER:
            raise Fault("EREMOTEIO", f"the answer is over {MAX_ANSWER >> 20} million characters")

    def call(self, key: Any, call: str = "", name: str = "", arguments: str = "") -> None:
        """More of a tool call. Ids and names come whole, arguments in pieces."""
        known = self._calls.get(key)
        if known is None:
            if len(self._calls) >= MAX_CALLS:
                raise Fault("EREMOTEIO", f"the answer has over {MAX_CALLS} tool calls")
            known = self._calls[key] = _Call()
        known.call = known.call or call
        known.name = known.name or name
        known.arguments.append(arguments)
        self.bound(len(arguments))

    def has_call(self, key: Any) -> bool:
        return key in self._calls

    def calls(self) -> list[Frame]:
        """The calls that are whole now and have not been said."""
        whole, self._calls = list(self._calls.values()), {}
        frames: list[Frame] = []
        for each in whole:
            self._said_calls += 1
            frames.append(each.frame(f"call{self._said_calls}"))
        return frames

    def end(self, cut: bool = False) -> list[Frame]:
        """Calls, message and usage, in the order of abi.md 5.13."""
        frames = self.calls()
        if self._text or not self._said_calls:
            frames.append(Message(role="assistant", content=[Text(self.text)]))
        if cut:
            frames.append(Progress(message="the answer was cut at max_tokens"))
        if self.input_tokens is not None or self.output_tokens is not None:
            frames.append(Usage(input_tokens=self.input_tokens or 0, output_tokens=self.output_tokens or 0))
        return frames


class _Call:
    def __init__(self) -> None:
        self.call = ""
        self.name = ""
        self.arguments: list[str] = []

    def frame(self, fallback: str) -> ToolCall:
        text = "".join(self.arguments)
        return ToolCall(call=self.call or fallback, name=self.name, input=arguments(text))


def arguments(text: str) -> Any:
    """A call's input. What is no JSON, or deeper than readers of frames go, is passed on as text, to be told
    to the model as what it is."""
    if not text.strip():
        return {}
    try:
        return jsontext.decode(text.encode(errors="replace"))
    except Fault:
        return text


def written(value: Any) -> str:
    """A call's input as the text that it came as."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def decoded(decoder: msgspec.json.Decoder[T], event: ServerEvent) -> T:
    """The data of an event; EREMOTEIO when it is not what the format says."""
    try:
        return decoder.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise garbage() from None


def garbage() -> Fault:
    return Fault("EREMOTEIO", "its stream cannot be read: an event is not what the format says")


def broken_off() -> Fault:
    return Fault("EREMOTEIO", "its stream broke off in the middle of the answer")


def filtered(why: str) -> Fault:
    return Fault("EPERM", f"the provider stopped the answer: {why}")


def merged(*bodies: dict[str, Any]) -> dict[str, Any]:
    """A request of these parts, later ones counting more; null leaves a field out, whoever set it."""
    whole = {key: value for body in bodies for key, value in body.items()}
    return {key: value for key, value in whole.items() if value is not None}


def renamed(parameters: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Parameters by the provider's names for them."""
    return {names.get(key, key): value for key, value in parameters.items()}
