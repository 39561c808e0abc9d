"""The format openai.responses: /responses, OpenAI's newer interface.

Rules: pure, as format.py requires. The provider keeps no conversation (`store` is false), as we keep the
session's history. Events have sequence numbers: a repeated event counts once, and a gap is a broken stream.
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
    BrokenStream,
    Format,
    FormatReader,
    ProviderRefusal,
    decoded,
    merged,
    renamed,
    replaced,
    written,
)

RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}


def request(model: ModelEntry, question: ModelInput) -> dict[str, Any]:
    question = renamed(question)
    body: dict[str, Any] = {"model": model.id, "store": False}
    if question.system:
        body["instructions"] = question.system
    body["input"] = [item for prompt in question.said for item in _items(prompt)]
    if question.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
                "strict": False,
            }
            for tool in question.tools
        ]
    if question.tool_choice:
        plain = question.tool_choice in ("auto", "none", "required")
        body["tool_choice"] = (
            question.tool_choice if plain else {"type": "function", "name": question.tool_choice}
        )
    if question.schema is not None:
        format_ = {"name": "answer", "schema": question.schema, "strict": is_strict(question.schema)}
        body["text"] = {"format": {"type": "json_schema", **format_}}
    if (effort := question.effort or model.effort) != "auto":
        body["reasoning"] = {"effort": effort, "summary": "auto"}
    return merged(body, replaced(model.default, RENAMED), replaced(question.parameters, RENAMED))


def _items(prompt: PromptMessage) -> list[dict[str, Any]]:
    if prompt.role == "tool":
        return [{"type": "function_call_output", "call_id": prompt.call, "output": prompt.text}]
    items: list[dict[str, Any]] = []
    if prompt.parts:
        items.append({"role": prompt.role, "content": [_part(part, prompt.role) for part in prompt.parts]})
    for each in prompt.calls:
        call = {"call_id": each.call, "name": each.name, "arguments": written(each.input)}
        items.append({"type": "function_call", **call})
    return items


def _part(part: Part, role: str) -> dict[str, Any]:
    if isinstance(part, PromptText):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}
    if part.kind == "image":
        return {"type": "input_image", "image_url": part.data_url, "detail": "auto"}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    return {"type": "input_file", "filename": part.name or "file", "file_data": part.data_url}


class _Item(msgspec.Struct):
    type: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct):
    type: str
    sequence_number: int | None = None
    delta: Any = None
    output_index: int | None = None
    item: _Item | None = None
    response: _Response | None = None


_events = msgspec.json.Decoder(_Event)
_TEXT = ("response.output_text.delta", "response.refusal.delta")
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_LAST = ("response.completed", "response.incomplete")


class ResponsesReader(FormatReader):
    """Reads one stream of events."""

    def __init__(self, question: ModelInput) -> None:
        super().__init__(question)
        self._number: int | None = None

    def read(self, event: ServerEvent) -> list[Frame]:
        if event.data == b"[DONE]":
            return []
        fields = decoded(_events, event)
        if self.ended or self._is_repeated(fields.sequence_number):
            return []
        if fields.type in ("error", "response.failed"):
            raise ProviderRefusal(_error(event.data, fields))
        if fields.type in _TEXT and isinstance(fields.delta, str):
            return self._say(fields.delta)
        if fields.type in _REASONING and isinstance(fields.delta, str):
            return self._think(fields.delta)
        if fields.type == "response.output_item.done" and fields.item and fields.item.type == "function_call":
            self._call(fields.output_index, fields.item.call_id, fields.item.name, fields.item.arguments)
            return self._whole_calls()
        if fields.type in _LAST:
            self._end(fields.response or _Response())
        return []

    def _is_repeated(self, number: int | None) -> bool:
        """Returns True if this number came before. Raises BrokenStream if a number is missing."""
        if number is None:
            return False
        before, self._number = self._number, number if self._number is None else max(self._number, number)
        if before is not None and number > before + 1:
            raise BrokenStream
        return before is not None and number <= before

    def _end(self, response: _Response) -> None:
        self.ended = True
        if response.usage:
            self._input_tokens = response.usage.input_tokens
            self._output_tokens = response.usage.output_tokens
        if response.incomplete_details:
            self._reason = response.incomplete_details.reason or ""


def _error(data: bytes, event: _Event) -> bytes:
    """Returns the error of a stream in the form of an error response's body."""
    if event.response is not None and event.response.error is not None:
        return msgspec.json.encode({"error": event.response.error})
    return data


FORMAT = Format(request, ResponsesReader)
