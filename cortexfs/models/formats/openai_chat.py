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


def request(model: ModelEntry, question: ModelInput) -> dict[str, Any]:
    question = renamed(question)
    messages = [{"role": "system", "content": question.system}] if question.system else []
    messages += [_message(prompt) for prompt in question.said]
    body: dict[str, Any] = {"model": model.id, "messages": messages}
    if question.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.schema},
            }
            for t in question.tools
        ]
    if question.tool_choice:
        body["tool_choice"] = _choice(question.tool_choice)
    if question.schema is not None:
        format_ = {"name": "answer", "schema": question.schema, "strict": is_strict(question.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": format_}
    if (effort := question.effort or model.effort) != "auto":
        body["reasoning_effort"] = effort
    body["stream_options"] = {"include_usage": True}
    return merged(body, model.default, question.parameters)


def _choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _message(prompt: PromptMessage) -> dict[str, Any]:
    if prompt.role == "tool":
        return {"role": "tool", "tool_call_id": prompt.call, "content": prompt.text}
    message: dict[str, Any] = {"role": prompt.role}
    if all(isinstance(part, PromptText) for part in prompt.parts):
        message["content"] = prompt.text if prompt.parts or not prompt.calls else None
    else:
        message["content"] = [_part(part) for part in prompt.parts]
    if prompt.calls:
        message["tool_calls"] = [
            {
                "id": each.call,
                "type": "function",
                "function": {"name": each.name, "arguments": written(each.input)},
            }
            for each in prompt.calls
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

    def __init__(self, question: ModelInput) -> None:
        super().__init__(question)
        self._is_done = False

    def read(self, event: ServerEvent) -> list[Frame]:
        if event.data == b"[DONE]":
            self._is_done = self.ended = True
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
            if choice.index == 0 and not self._is_done:
                return self._choice(choice)
        return []

    def _choice(self, choice: _Choice) -> list[Frame]:
        frames: list[Frame] = []
        if delta := choice.delta or choice.message:
            frames += self._think(delta.reasoning_content or delta.reasoning)
            frames += self._say(delta.content or delta.refusal)
            for number, call in enumerate(delta.tool_calls or ()):
                function = call.function or _Function()
                key = number if call.index is None else call.index
                self._call(key, call.id, function.name, function.arguments)
        if choice.finish_reason:
            self._reason, self.ended = choice.finish_reason, True
        if choice.finish_reason == "tool_calls":
            frames += self._whole_calls()
        return frames


FORMAT = Format(request, ChatReader)


MOST = "high"  # the highest effort that Google takes


def google_request(model: ModelEntry, question: ModelInput) -> dict[str, Any]:
    body = request(model, question)
    if body.get("reasoning_effort") == "xhigh":
        body["reasoning_effort"] = MOST
    return body


GOOGLE = Format(google_request, ChatReader)
