"""The frames of exec, sockets and session logs (abi.md 6): one JSON object a line.

Rules: the field order on the wire is type, id, run, the rest, and it is the order of the fields
here. A field that is None is not sent. Readers ignore unknown fields, so a new field needs a
default. The result of `encode` has exactly one newline, at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

MAX_LINE = 1 << 20  # the seed: max frame size v1 is 1 MiB, newline included

Status = Literal["ok", "error", "cancelled"]


class Frame(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The fields of every frame of a run. Frames have an `id` only on sockets and in logs."""

    FINAL: ClassVar[bool] = False

    id: str | None = None
    run: str | None = None
    request: str | None = None


class Start(Frame, frozen=True, tag="start", kw_only=True):
    model: str | None = None
    agent: str | None = None
    tool: str | None = None


class Delta(Frame, frozen=True, tag="delta", kw_only=True):
    text: str


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class Message(Frame, frozen=True, tag="message", kw_only=True):
    role: str
    content: list[Text]


class ReasoningDelta(Frame, frozen=True, tag="reasoning_delta", kw_only=True):
    text: str


class ToolCall(Frame, frozen=True, tag="tool_call", kw_only=True):
    call: str
    name: str
    input: Any
    parent: str | None = None  # the call whose program makes this call


class ToolResult(Frame, frozen=True, tag="tool_result", kw_only=True):
    call: str
    name: str
    output: str
    is_error: bool


class Progress(Frame, frozen=True, tag="progress", kw_only=True):
    message: str


class Observer(Frame, frozen=True, tag="observer", kw_only=True):
    source: str | None = None
    content: str


class Media(Frame, frozen=True, tag="media", kw_only=True):
    attachment: Any


class Usage(Frame, frozen=True, tag="usage", kw_only=True):
    input_tokens: int
    output_tokens: int
    model: str | None = None  # the model that took the tokens


class Approval(Frame, frozen=True, tag="approval", kw_only=True):
    call: str
    name: str
    input: Any
    effects: list[str]
    reason: str


class Question(Frame, frozen=True, tag="question", kw_only=True):
    """A question of the tool `name`. It has the `schema` of a form, or a `url` that is to be opened."""

    call: str
    question: str
    name: str
    message: str
    schema: Any = None
    url: str | None = None


class Error(Frame, frozen=True, tag="error", kw_only=True):
    code: str
    message: str


class Done(Frame, frozen=True, tag="done", kw_only=True):
    FINAL: ClassVar[bool] = True

    status: Status
    code: str | None = None


# The status of a run by the code of its fault; other codes are "error".
ENDS: Mapping[str | None, Status] = {None: "ok", "ECANCELED": "cancelled"}


class Pong(Frame, frozen=True, tag="pong", kw_only=True):
    pass


AnyFrame: TypeAlias = (
    Start
    | Delta
    | Message
    | ReasoningDelta
    | ToolCall
    | ToolResult
    | Progress
    | Observer
    | Media
    | Usage
    | Approval
    | Question
    | Error
    | Done
    | Pong
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyFrame] = msgspec.json.Decoder(AnyFrame)

decode = _decoder.decode
encode_lines = _encoder.encode_lines  # for several frames, none of which has a msgspec.Raw


def encode(frame: Frame) -> bytes:
    line = _encoder.encode(frame)
    assert b"\n" not in line  # msgspec.Raw is emitted verbatim; code that sets one compacts it
    return line + b"\n"
