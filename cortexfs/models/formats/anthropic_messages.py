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


def request(model: ModelEntry, asked: ModelInput) -> dict[str, Any]:
    asked = renamed(asked)
    body: dict[str, Any] = {"model": model.id, "max_tokens": MAX_TOKENS, "messages": _messages(asked)}
    if asked.system:
        body["system"] = [{"type": "text", "text": asked.system, "cache_control": CACHED}]
    if asked.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in asked.tools
        ]
    if asked.tool_choice:
        body["tool_choice"] = _choice(asked.tool_choice)
    output: dict[str, Any] = {}
    if (effort := asked.effort or model.effort) != "auto":
        output["effort"] = effort
    if asked.schema is not None:
        output["format"] = {"type": "json_schema", "schema": asked.schema}
    if output:
        body["output_config"] = output
    return merged(body, replaced(model.default, RENAMED), replaced(asked.parameters, RENAMED))


def _choice(choice: str) -> dict[str, Any]:
    known = {"auto": "auto", "none": "none", "required": "any"}
    return {"type": known[choice]} if choice in known else {"type": "tool", "name": choice}


def _messages(asked: ModelInput) -> list[dict[str, Any]]:
    """Returns messages in Anthropic's form: tools' answers are the user's, and roles take turns."""
    turns = [("assistant" if said.role == "assistant" else "user", said) for said in asked.said]
    messages = [
        {"role": role, "content": [block for _, said in group for block in _blocks(said)]}
        for role, group in groupby(turns, key=lambda turn: turn[0])
    ]
    messages = [message for message in messages if message["content"]]
    if len(messages) > 1:  # the next turn's request begins with all of this one
        messages[-1]["content"][-1] |= {"cache_control": CACHED}
    return messages


def _blocks(said: PromptMessage) -> list[dict[str, Any]]:
    if said.role == "tool":
        answer: dict[str, Any] = {"type": "tool_result", "tool_use_id": said.call}
        if blocks := [_part(part) for part in said.parts]:
            answer["content"] = blocks
        return [answer | ({"is_error": True} if said.is_error else {})]
    called = [
        {"type": "tool_use", "id": each.call, "name": each.name, "input": each.input} for each in said.calls
    ]
    return [_part(part) for part in said.parts] + called


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

    def __init__(self, asked: ModelInput) -> None:
        super().__init__(asked)
        self._open: set[int | None] = set()
        self._begun = False

    def read(self, event: ServerEvent) -> list[Frame]:
        said = decoded(_events, event)
        if said.type == "error":
            raise ProviderRefusal(event.data)
        if self.ended:
            return []
        read = _READ.get(said.type)
        return read(self, said) if read else []

    def _start(self, said: _Event) -> list[Frame]:
        if self._begun:
            raise garbage()
        self._begun = True
        try:
            self._count(msgspec.convert(said.message or {}, _Message).usage)
        except msgspec.ValidationError:
            raise garbage() from None
        return []

    def _begin(self, said: _Event) -> list[Frame]:
        block = said.content_block
        if block is None or said.index in self._open:
            raise garbage()
        self._open.add(said.index)
        if block.type == "tool_use":
            given = msgspec.json.encode(block.input).decode() if block.input else ""
            self._call(said.index, block.id, block.name, given)
        return self._say(block.text)

    def _delta(self, said: _Event) -> list[Frame]:
        if said.delta is None or said.index not in self._open:
            raise garbage()
        if said.delta.thinking:
            return self._think(said.delta.thinking)
        if said.delta.partial_json and said.index in self._calls:
            self._call(said.index, None, None, said.delta.partial_json)
        return self._say(said.delta.text)

    def _end_block(self, said: _Event) -> list[Frame]:
        if said.index not in self._open:
            raise garbage()
        self._open.discard(said.index)
        return self._whole_calls() if said.index in self._calls else []

    def _about(self, said: _Event) -> list[Frame]:
        self._count(said.usage)
        if said.delta:
            self._reason = said.delta.stop_reason or self._reason
        return []

    def _stop(self, said: _Event) -> list[Frame]:
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
