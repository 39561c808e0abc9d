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


def request(model: ModelEntry, asked: ModelInput) -> dict[str, Any]:
    asked = renamed(asked)
    body: dict[str, Any] = {"model": model.id, "store": False}
    if asked.system:
        body["instructions"] = asked.system
    body["input"] = [item for said in asked.said for item in _items(said)]
    if asked.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
                "strict": False,
            }
            for tool in asked.tools
        ]
    if asked.tool_choice:
        plain = asked.tool_choice in ("auto", "none", "required")
        body["tool_choice"] = asked.tool_choice if plain else {"type": "function", "name": asked.tool_choice}
    if asked.schema is not None:
        named = {"name": "answer", "schema": asked.schema, "strict": is_strict(asked.schema)}
        body["text"] = {"format": {"type": "json_schema", **named}}
    if (effort := asked.effort or model.effort) != "auto":
        body["reasoning"] = {"effort": effort, "summary": "auto"}
    return merged(body, replaced(model.default, RENAMED), replaced(asked.parameters, RENAMED))


def _items(said: PromptMessage) -> list[dict[str, Any]]:
    if said.role == "tool":
        return [{"type": "function_call_output", "call_id": said.call, "output": said.text}]
    items: list[dict[str, Any]] = []
    if said.parts:
        items.append({"role": said.role, "content": [_part(part, said.role) for part in said.parts]})
    for each in said.calls:
        named = {"call_id": each.call, "name": each.name, "arguments": written(each.input)}
        items.append({"type": "function_call", **named})
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

    def __init__(self, asked: ModelInput) -> None:
        super().__init__(asked)
        self._number: int | None = None

    def read(self, event: ServerEvent) -> list[Frame]:
        if event.data == b"[DONE]":
            return []
        said = decoded(_events, event)
        if self.ended or self._is_repeated(said.sequence_number):
            return []
        if said.type in ("error", "response.failed"):
            raise ProviderRefusal(_error(event.data, said))
        if said.type in _TEXT and isinstance(said.delta, str):
            return self._say(said.delta)
        if said.type in _REASONING and isinstance(said.delta, str):
            return self._think(said.delta)
        if said.type == "response.output_item.done" and said.item and said.item.type == "function_call":
            self._call(said.output_index, said.item.call_id, said.item.name, said.item.arguments)
            return self._whole_calls()
        if said.type in _LAST:
            self._end(said.response or _Response())
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


def _error(data: bytes, said: _Event) -> bytes:
    """Returns the error of a stream in the form of an error response's body."""
    if said.response is not None and said.response.error is not None:
        return msgspec.json.encode({"error": said.response.error})
    return data


FORMAT = Format(request, ResponsesReader)
