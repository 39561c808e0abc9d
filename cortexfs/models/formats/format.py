"""The format of a driver: how a request looks, and how a stream of events becomes frames.

    body = format.request(model, asked)
    reader = format.reader(asked)
    for event in events: frames = reader.read(event)
    frames = reader.end()              the message; raises a fault if the stream was cut

A tool's name may have dots and plus signs (abi.md 2.1). OpenAI, Anthropic and Google take at most 64 letters,
digits, _ and -. So `fs.read` is sent as fs_read, and a call of fs_read becomes a call of fs.read.

Rules: formats are pure and know no connection. A reader returns deltas at once and tool calls whole, and
keeps the text for its message up to MAX_ANSWER. A provider's stream is untrusted input: an unreadable event
raises EREMOTEIO, and an unknown event is skipped. Each tool of a request gets a different name. For prompt
caches the same tools get the same names every time: a valid name stays, and others are made in the order of
the request. A call of a name that was not sent is passed on unchanged.
This file must never know which providers there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain, count
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Frame, Message, Progress, ReasoningDelta, Text, ToolCall, Usage
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.models.sse import ServerEvent
from cortexfs.core.talk import refusals
from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import ModelInput, PromptMessage

MAX_ANSWER = 64 << 20  # characters of an answer; a longer one is a fault of the provider
MAX_CALLS = 1000  # tool calls of one answer
UNNAMED = "unnamed"  # a call of a model that forgot to say which tool: it is told so, by what it is shown

# The words with which providers end an answer: FILTERED for its content, CUT for its length.
FILTERED = {"content_filter": "its content filter", "refusal": "the model refuses"}
CUT = ("length", "max_output_tokens", "max_tokens", "model_context_window_exceeded")
REPEATS = "repeats"  # our own word
ENDINGS = {
    **dict.fromkeys(CUT, refusals.CUT),
    REPEATS: refusals.REPEATED,
}

T = TypeVar("T")


class ProviderRefusal(Exception):
    """An error that a provider sent within its stream, unchanged."""

    def __init__(self, body: bytes) -> None:
        super().__init__("the provider sent an error in its stream")
        self.body = body


class BrokenStream(Fault):
    """The stream ended before its answer was whole."""

    def __init__(self) -> None:
        super().__init__("EREMOTEIO", "its stream broke off in the middle of the answer")


class FormatReader:
    """Reads one stream of events: the part that all formats share."""

    def __init__(self, question: ModelInput) -> None:
        self._names = {
            sent_name: name for name, sent_name in sent(tool.name for tool in question.tools).items()
        }
        self._text: list[str] = []
        self._size = 0
        self._calls: dict[Any, _Call] = {}  # the newest call of each key
        self._all_calls: list[_Call] = []
        self._call_count = 0
        self._input_tokens: int | None = None
        self._output_tokens: int | None = None
        self._reason = ""  # the provider's word for the end of the answer
        self.ended = False  # the answer is whole
        self.enough = False  # the rest of the stream need not be read

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return "".join(self._text)

    def read(self, event: ServerEvent) -> list[Frame]:
        """Returns the frames of an event. Raises ProviderRefusal for an error that the provider sends."""
        raise NotImplementedError

    def end(self) -> list[Frame]:
        """Returns the last frames at the end of the stream, in the order of abi.md 5.13."""
        if not self.ended:
            raise BrokenStream
        if self._reason in FILTERED:
            raise Fault("EPERM", f"the provider stopped the answer: {FILTERED[self._reason]}")
        frames = self._whole_calls()
        if self._text or not self._call_count:
            frames.append(Message(role="assistant", content=[Text(self.text)]))
        if self._reason in ENDINGS:
            frames.append(Progress(message=ENDINGS[self._reason]))
        if self._input_tokens is not None or self._output_tokens is not None:
            usage = Usage(input_tokens=self._input_tokens or 0, output_tokens=self._output_tokens or 0)
            frames.append(usage)
        return frames

    def _say(self, text: str | None) -> list[Frame]:
        if not text:
            return []
        self._text.append(text)
        self._bound(len(text))
        return [Delta(text=text)]

    def _think(self, text: str | None) -> list[Frame]:
        if not text:
            return []
        self._bound(len(text))
        return [ReasoningDelta(text=text)]

    def _bound(self, size: int) -> None:
        self._size += size
        if self._size > MAX_ANSWER:
            raise Fault("EREMOTEIO", f"the answer is over {MAX_ANSWER >> 20} million characters")

    def _call(self, key: Any, call: str | None, name: str | None, arguments: str | None) -> None:
        """Keep a piece of a tool call. Ids and names come whole, arguments in pieces. Several calls may share
        a key, one after the other."""
        entry = self._calls.get(key)
        if entry is None or entry.is_another(call, name):
            if len(self._all_calls) >= MAX_CALLS:
                raise Fault("EREMOTEIO", f"the answer has over {MAX_CALLS} tool calls")
            entry = self._calls[key] = _Call()
            self._all_calls.append(entry)
        entry.call = entry.call or call or ""
        entry.name = entry.name or name or ""
        entry.arguments.append(arguments or "")
        self._bound(len(arguments or ""))

    def _whole_calls(self) -> list[Frame]:
        """Returns the calls that are whole now and were not returned before, under our names."""
        calls, self._all_calls, self._calls = self._all_calls, [], {}
        frames: list[Frame] = []
        for call in calls:
            self._call_count += 1
            name = self._names.get(call.name, call.name) or UNNAMED
            input_ = arguments("".join(call.arguments))
            frames.append(ToolCall(call=call.call or f"call{self._call_count}", name=name, input=input_))
        return frames


class _Call:
    def __init__(self) -> None:
        self.call = ""
        self.name = ""
        self.arguments: list[str] = []

    def is_another(self, call: str | None, name: str | None) -> bool:
        """Returns True for the beginning of the next call. Some servers put a new id into each piece of a
        call, but a name only into the first."""
        if not name or not self.name:
            return False
        return call != self.call if call and self.call else name != self.name


class Format(NamedTuple):
    request: Callable[[ModelEntry, ModelInput], dict[str, Any]]
    reader: Callable[[ModelInput], FormatReader]


def arguments(text: str) -> Any:
    """Returns a call's input. Text that is no JSON, or too deep for readers of frames, is passed on as text,
    so that the model learns of its mistake."""
    if not text.strip():
        return {}
    try:
        return jsontext.decode(text.encode(errors="replace"))
    except Fault:
        return text


def written(value: Any) -> str:
    """Returns a call's input as the text in which it came."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def decoded(decoder: msgspec.json.Decoder[T], event: ServerEvent) -> T:
    """Returns the data of an event. Raises EREMOTEIO if it does not fit the format. Bytes that are no UTF-8
    are replaced, and the rest is kept."""
    try:
        return decoder.decode(event.data)
    except UNREADABLE:
        text = event.data.decode("utf-8", "replace").encode()
        if text == event.data:
            raise garbage(_misfit(event.data, decoder.type)) from None
    return decoded(decoder, event._replace(data=text))


def _misfit(data: bytes, type_: Any) -> str:
    try:
        jsontext.converted(jsontext.decode(data), type_, whole="it")
    except Fault as fault:
        return fault.message
    return ""


def garbage(why: str = "") -> Fault:
    sentence = "its stream cannot be read: an event does not fit the format"
    return Fault("EREMOTEIO", f"{sentence}: {why}" if why else sentence)


def merged(*bodies: dict[str, Any]) -> dict[str, Any]:
    """Returns a request of these parts. Later parts replace fields of earlier ones; null removes a field."""
    fields = {key: value for body in bodies for key, value in body.items()}
    return {key: value for key, value in fields.items() if value is not None}


def replaced(parameters: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Returns parameters under the provider's names for them."""
    return {names.get(key, key): value for key, value in parameters.items()}


LONGEST = 64
_GOOD = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST}}}", re.ASCII)
_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


def sent(names: Iterable[str]) -> dict[str, str]:
    """Returns a name to send for each name that is not valid for providers."""
    originals = list(dict.fromkeys(names))
    used_names = {name for name in originals if _GOOD.fullmatch(name)}
    replacements: dict[str, str] = {}
    for name in originals:
        if not _GOOD.fullmatch(name):
            replacements[name] = _free(_plain(name), used_names)
            used_names.add(replacements[name])
    return replacements


def _plain(name: str) -> str:
    return _OUTSIDE.sub("_", name)[:LONGEST] or "_"


def _free(plain: str, used_names: set[str]) -> str:
    ends = chain([""], (f"_{number}" for number in count(2)))
    return next(name for end in ends if (name := plain[: LONGEST - len(end)] + end) not in used_names)


def renamed(question: ModelInput) -> ModelInput:
    """Returns the question with the names of tools that are sent."""
    names = sent(tool.name for tool in question.tools)
    return replace(
        question,
        tools=tuple(replace(tool, name=names.get(tool.name, tool.name)) for tool in question.tools),
        said=tuple(_message(message, names) for message in question.said),
        tool_choice=names.get(question.tool_choice, question.tool_choice),
    )


def _message(message: PromptMessage, names: dict[str, str]) -> PromptMessage:
    """Returns a message with valid names in its calls. The tool of a past call may no longer be offered."""
    calls = tuple(replace(call, name=names.get(call.name) or _plain(call.name)) for call in message.calls)
    return replace(message, calls=calls) if calls else message
