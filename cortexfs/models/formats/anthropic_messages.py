"""The format anthropic.messages: /v1/messages.

Rules: pure, as format.py requires. The prefix of a request is marked for Anthropic's prompt cache, which
caches only marked prefixes. Blocks have numbers: an event for a block that has not begun is a fault.
This file must never know connections.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from cortexfs.core.frames import Frame
from cortexfs.core.models.sse import ServerEvent
from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import ModelInput, Part, PromptMessage, PromptText
from cortexfs.models.formats.format import (
    BrokenStream,
    Format,
    FormatReader,
    ProviderRefusal,
    decoded,
    garbage,
    merged,
    renamed,
    replaced,
)

MAX_TOKENS = 4096  # of an answer: Anthropic requires a number, and each of its models takes this one
RENAMED = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
}
CACHED = {"type": "ephemeral"}


def request(model: ModelEntry, question: ModelInput) -> dict[str, Any]:
    question = renamed(question)
    body: dict[str, Any] = {"model": model.id, "max_tokens": MAX_TOKENS, "messages": _messages(question)}
    if question.system:
        body["system"] = [{"type": "text", "text": question.system, "cache_control": CACHED}]
    if question.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in question.tools
        ]
    if question.tool_choice:
        body["tool_choice"] = _choice(question.tool_choice)
    output: dict[str, Any] = {}
    if (effort := question.effort or model.effort) != "auto":
        output["effort"] = effort
    if question.schema is not None:
        output["format"] = {"type": "json_schema", "schema": question.schema}
    if output:
        body["output_config"] = output
    return merged(body, replaced(model.default, RENAMED), replaced(question.parameters, RENAMED))


def _choice(choice: str) -> dict[str, Any]:
    known = {"auto": "auto", "none": "none", "required": "any"}
    return {"type": known[choice]} if choice in known else {"type": "tool", "name": choice}


def _messages(question: ModelInput) -> list[dict[str, Any]]:
    """Returns messages in Anthropic's form: tools' answers are the user's, and roles take turns."""
    turns = [("assistant" if prompt.role == "assistant" else "user", prompt) for prompt in question.said]
    messages = [
        {"role": role, "content": [block for _, prompt in group for block in _blocks(prompt)]}
        for role, group in groupby(turns, key=lambda turn: turn[0])
    ]
    messages = [message for message in messages if message["content"]]
    if len(messages) > 1:  # the next turn's request begins with all of this one
        messages[-1]["content"][-1] |= {"cache_control": CACHED}
    return messages


def _blocks(prompt: PromptMessage) -> list[dict[str, Any]]:
    if prompt.role == "tool":
        answer: dict[str, Any] = {"type": "tool_result", "tool_use_id": prompt.call}
        if blocks := [_part(part) for part in prompt.parts]:
            answer["content"] = blocks
        return [answer | ({"is_error": True} if prompt.is_error else {})]
    calls = [
        {"type": "tool_use", "id": each.call, "name": each.name, "input": each.input} for each in prompt.calls
    ]
    return [_part(part) for part in prompt.parts] + calls


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, PromptText):
        return {"type": "text", "text": part.text}
    if part.url:
        source: dict[str, Any] = {"type": "url", "url": part.url}
    else:
        source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.kind == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source} | ({"title": part.name} if part.name else {})


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    input: Any = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str
    index: int | None = None
    message: Any = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


_events = msgspec.json.Decoder(_Event)


class MessagesReader(FormatReader):
    """Reads one stream of events."""

    def __init__(self, question: ModelInput) -> None:
        super().__init__(question)
        self._open: set[int | None] = set()
        self._is_begun = False

    def read(self, event: ServerEvent) -> list[Frame]:
        fields = decoded(_events, event)
        if fields.type == "error":
            raise ProviderRefusal(event.data)
        if self.ended:
            return []
        reader = _READ.get(fields.type)
        return reader(self, fields) if reader else []

    def _start(self, event: _Event) -> list[Frame]:
        if self._is_begun:
            raise garbage()
        self._is_begun = True
        try:
            self._count(msgspec.convert(event.message or {}, _Message).usage)
        except msgspec.ValidationError:
            raise garbage() from None
        return []

    def _begin(self, event: _Event) -> list[Frame]:
        block = event.content_block
        if block is None or event.index in self._open:
            raise garbage()
        self._open.add(event.index)
        if block.type == "tool_use":
            text = msgspec.json.encode(block.input).decode() if block.input else ""
            self._call(event.index, block.id, block.name, text)
        return self._say(block.text)

    def _delta(self, event: _Event) -> list[Frame]:
        if event.delta is None or event.index not in self._open:
            raise garbage()
        if event.delta.thinking:
            return self._think(event.delta.thinking)
        if event.delta.partial_json and event.index in self._calls:
            self._call(event.index, None, None, event.delta.partial_json)
        return self._say(event.delta.text)

    def _end_block(self, event: _Event) -> list[Frame]:
        if event.index not in self._open:
            raise garbage()
        self._open.discard(event.index)
        return self._whole_calls() if event.index in self._calls else []

    def _about(self, event: _Event) -> list[Frame]:
        self._count(event.usage)
        if event.delta:
            self._reason = event.delta.stop_reason or self._reason
        return []

    def _stop(self, event: _Event) -> list[Frame]:
        if self._open:
            raise BrokenStream
        self.ended = True
        return []

    def _count(self, usage: _Usage | None) -> None:
        """Keep the totals so far. Tokens that were written to the cache or read from it are input, too."""
        if usage is None:
            return
        if usage.input_tokens is not None:
            cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
            self._input_tokens = usage.input_tokens + cached
        if usage.output_tokens is not None:
            self._output_tokens = usage.output_tokens


_READ = {
    "message_start": MessagesReader._start,
    "content_block_start": MessagesReader._begin,
    "content_block_delta": MessagesReader._delta,
    "content_block_stop": MessagesReader._end_block,
    "message_delta": MessagesReader._about,
    "message_stop": MessagesReader._stop,
}

FORMAT = Format(request, MessagesReader)
