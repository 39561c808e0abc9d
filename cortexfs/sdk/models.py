"""Models that a plugin provides: their requests, and their answers beside text.

    class Parrot(Model):
        name = "birds/parrot"
        description = "Says again what it hears."

        def answer(self, request, runtime):
            yield from request.text.split()

Rules: a model runs as a tool does, in the same host, by the same `run`. It differs in its input (a
ModelRequest) and in its output (text, Reasoning, ToolCall, Usage). A model never runs a tool: it names the
tool that it wants, and its caller decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cortexfs.sdk.tools import InvalidInput, Tool, ToolRuntime


class Reasoning(NamedTuple):
    """A piece of a model's reasoning, which is no part of its answer."""

    text: str


class ToolCall(NamedTuple):
    """A complete request of the model to run a tool. `call` is its id, unique in this answer."""

    call: str
    name: str
    input: Mapping[str, Any]


class Usage(NamedTuple):
    """The cost of an answer in tokens; the last one counts."""

    input_tokens: int
    output_tokens: int


class ModelMedia(NamedTuple):
    """An image or a file: base64, or a URL."""

    kind: str  # image or file
    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""


class ModelMessage(NamedTuple):
    role: str  # user, assistant or tool
    text: str = ""
    media: tuple[ModelMedia, ...] = ()
    calls: tuple[ToolCall, ...] = ()  # of role assistant
    call: str = ""  # of role tool: the call that this answers
    is_error: bool = False


class OfferedTool(NamedTuple):
    """A tool that the model may ask for."""

    name: str
    description: str
    schema: Mapping[str, Any]


class ModelRequest(NamedTuple):
    """The question to a model: the conversation so far, as much as its limit holds, and the settings."""

    messages: tuple[ModelMessage, ...]
    system: str = ""
    tools: tuple[OfferedTool, ...] = ()
    tool_choice: str = ""  # "", auto, none, required, or a tool's name
    schema: Mapping[str, Any] | None = None  # for an answer in JSON, which is checked
    parameters: Mapping[str, Any] = {}  # those of `.d/default`, then the caller's
    effort: str = "auto"

    @property
    def text(self) -> str:
        """The newest message of the user."""
        return next((each.text for each in reversed(self.messages) if each.role == "user"), "")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ModelRequest:
        """Returns a request from JSON with these fields, as a host receives it and a test may write it."""
        try:
            fields = dict(given)
            fields["messages"] = tuple(_message(each) for each in given["messages"])
            fields["tools"] = tuple(OfferedTool(**each) for each in given.get("tools", ()))
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"the request to the model is not valid: {error}") from None


def _message(message: Mapping[str, Any]) -> ModelMessage:
    fields = dict(message)
    fields["media"] = tuple(ModelMedia(**each) for each in message.get("media", ()))
    fields["calls"] = tuple(ToolCall(**each) for each in message.get("calls", ()))
    return ModelMessage(**fields)


class Model(Tool):
    """A model, which callers can ask. Override `answer`; everything else is as with a Tool.

    It may return text, an iterator of pieces, or be an async function or generator of these.
    """

    name: str  # provider/model
    cap: tuple[str, ...] = ()  # beside chat, stream and session: vision, tool_call_syntax ...
    limit: int | None = None  # tokens of its window; None: unknown
    input_schema: Mapping[str, Any] = {"type": "object"}
    events = (Reasoning, ToolCall, Usage)

    def answer(self, request: ModelRequest, runtime: ToolRuntime) -> object:
        raise NotImplementedError(f"{type(self).__name__} defines no answer")

    def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> object:
        return self.answer(ModelRequest.of(input), runtime)

    def facts(self) -> dict[str, Any]:
        return {"model": {"cap": list(self.cap), "limit": self.limit}}
