"""Models that a plugin provides: what they are asked, and what they say beside text.

    class Parrot(Model):
        name = "birds/parrot"
        description = "Says again what it hears."

        def answer(self, request, runtime):
            yield from request.text.split()

Rules: a model is run as a tool is, in the same host, by the same `run`; it differs in what comes in (a
ModelRequest) and in what may come out (text, Reasoning, ToolCall, Usage). It never runs a tool: it says
which one it wants, and whoever asked decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cortexfs.sdk.tools import InvalidInput, Tool, ToolRuntime


class Reasoning(NamedTuple):
    """A piece of what a model thinks, which is no part of its answer."""

    text: str


class ToolCall(NamedTuple):
    """A tool that the model wants to be run, whole. `call` is its own name for it, unique in this answer."""

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
    calls: tuple[ToolCall, ...] = ()  # of an assistant
    call: str = ""  # of a tool: which call this answers
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
    schema: Mapping[str, Any] | None = None  # of the JSON that the answer is to be; it is checked
    parameters: Mapping[str, Any] = {}  # `.d/default` and what the caller gave
    effort: str = "auto"

    @property
    def text(self) -> str:
        """The newest message of the user."""
        return next((each.text for each in reversed(self.messages) if each.role == "user"), "")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ModelRequest:
        """From JSON with these fields; a host makes it of what the daemon sends, a test of what it likes."""
        try:
            fields = dict(given)
            fields["messages"] = tuple(_message(each) for each in given["messages"])
            fields["tools"] = tuple(OfferedTool(**each) for each in given.get("tools", ()))
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"this is no request to a model: {error}") from None


def _message(given: Mapping[str, Any]) -> ModelMessage:
    fields = dict(given)
    fields["media"] = tuple(ModelMedia(**each) for each in given.get("media", ()))
    fields["calls"] = tuple(ToolCall(**each) for each in given.get("calls", ()))
    return ModelMessage(**fields)


class Model(Tool):
    """A model, which callers can ask. Override `answer`; everything else is as with a Tool.

    It may return text, an iterator of pieces, or be an async function or generator of these.
    """

    name: str  # provider/model
    cap: tuple[str, ...] = ()  # what it can beside chat, stream and session: vision, tool_call_syntax ...
    limit: int | None = None  # tokens of its window; None: unknown
    input_schema: Mapping[str, Any] = {"type": "object"}
    events = (Reasoning, ToolCall, Usage)

    def answer(self, request: ModelRequest, runtime: ToolRuntime) -> object:
        raise NotImplementedError(f"{type(self).__name__} defines no answer")

    def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> object:
        return self.answer(ModelRequest.of(input), runtime)

    def facts(self) -> dict[str, Any]:
        return {"model": {"cap": list(self.cap), "limit": self.limit}}
