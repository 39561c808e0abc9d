"""The format openai.chat: /chat/completions, as OpenAI and many others speak it, Google among them.

Rules: pure, as format.py requires. Servers differ: some leave out `[DONE]`, others the last finish_reason, so
either one ends the answer. Reasoning comes as `reasoning_content` or `reasoning`. Google's own SDK needs
asyncio, so the format `google` is this one, for Gemini at Google's OpenAI-compatible endpoint.
This file must never know connections.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cortexfs.core.frames import Frame
from cortexfs.core.models.sse import ServerEvent
from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import ModelInput, Part, PromptMessage, PromptText
from cortexfs.models.ask.structured import is_strict
from cortexfs.models.formats.format import (
    Format,
    FormatReader,
    ProviderRefusal,
    decoded,
    garbage,
    merged,
    renamed,
    written,
)


def request(model: ModelEntry, asked: ModelInput) -> dict[str, Any]:
    asked = renamed(asked)
    messages = [{"role": "system", "content": asked.system}] if asked.system else []
    messages += [_message(said) for said in asked.said]
    body: dict[str, Any] = {"model": model.id, "messages": messages}
    if asked.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.schema},
            }
            for t in asked.tools
        ]
    if asked.tool_choice:
        body["tool_choice"] = _choice(asked.tool_choice)
    if asked.schema is not None:
        named = {"name": "answer", "schema": asked.schema, "strict": is_strict(asked.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if (effort := asked.effort or model.effort) != "auto":
        body["reasoning_effort"] = effort
    body["stream_options"] = {"include_usage": True}
    return merged(body, model.default, asked.parameters)


def _choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _message(said: PromptMessage) -> dict[str, Any]:
    if said.role == "tool":
        return {"role": "tool", "tool_call_id": said.call, "content": said.text}
    message: dict[str, Any] = {"role": said.role}
    if all(isinstance(part, PromptText) for part in said.parts):
        message["content"] = said.text if said.parts or not said.calls else None
    else:
        message["content"] = [_part(part) for part in said.parts]
    if said.calls:
        message["tool_calls"] = [
            {
                "id": each.call,
                "type": "function",
                "function": {"name": each.name, "arguments": written(each.input)},
            }
            for each in said.calls
        ]
    return message


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, PromptText):
        return {"type": "text", "text": part.text}
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": part.data_url}}
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.data_url}}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_chunks = msgspec.json.Decoder(_Chunk)


class ChatReader(FormatReader):
    """Reads one stream of chunks."""

    def __init__(self, asked: ModelInput) -> None:
        super().__init__(asked)
        self._done = False

    def read(self, event: ServerEvent) -> list[Frame]:
        if event.data == b"[DONE]":
            self._done = self.ended = True
            return []
        chunk = decoded(_chunks, event)
        if chunk.error is not None or event.name == "error":
            raise ProviderRefusal(event.data)
        if chunk.usage:
            self._input_tokens = chunk.usage.prompt_tokens
            self._output_tokens = chunk.usage.completion_tokens
        elif chunk.choices is None:
            raise garbage()
        for choice in chunk.choices or ():
            if choice.index == 0 and not self._done:
                return self._choice(choice)
        return []

    def _choice(self, choice: _Choice) -> list[Frame]:
        said: list[Frame] = []
        if delta := choice.delta or choice.message:
            said += self._think(delta.reasoning_content or delta.reasoning)
            said += self._say(delta.content or delta.refusal)
            for number, call in enumerate(delta.tool_calls or ()):
                function = call.function or _Function()
                key = number if call.index is None else call.index
                self._call(key, call.id, function.name, function.arguments)
        if choice.finish_reason:
            self._reason, self.ended = choice.finish_reason, True
        if choice.finish_reason == "tool_calls":
            said += self._whole_calls()
        return said


FORMAT = Format(request, ChatReader)


MOST = "high"  # the highest effort that Google takes


def google_request(model: ModelEntry, asked: ModelInput) -> dict[str, Any]:
    body = request(model, asked)
    if body.get("reasoning_effort") == "xhigh":
        body["reasoning_effort"] = MOST
    return body


GOOGLE = Format(google_request, ChatReader)
