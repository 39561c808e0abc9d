"""A request in each format, with everything that a caller may ask."""

from __future__ import annotations

from typing import Any

import msgspec

from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import (
    ModelInput,
    PastCall,
    PromptMedia,
    PromptMessage,
    PromptText,
    ToolOffer,
)
from cortexfs.models.ask.structured import is_strict
from cortexfs.models.drivers import FORMATS
from cortexfs.models.formats import anthropic_messages, openai_chat, openai_responses
from tests.tables import each_of

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
MODEL = ModelEntry(name="p/m", id="native/m")
ASKED = ModelInput(
    said=(
        PromptMessage("user", (PromptText("look"), PromptMedia("image", "image/png", "aGk="))),
        PromptMessage("assistant", (), (PastCall("c1", "f", {"a": 1}),)),
        PromptMessage("tool", (PromptText("42"),), (), "c1"),
        PromptMessage(
            "user", (PromptText("read"), PromptMedia("file", "application/pdf", "aGk=", name="x.pdf"))
        ),
    ),
    system="be terse",
    tools=(ToolOffer("f", "d", {"type": "object"}),),
    tool_choice="required",
    schema=SCHEMA,
    parameters={"temperature": 0, "max_tokens": 9},
    effort="high",
)
URL = "data:image/png;base64,aGk="
PDF = "data:application/pdf;base64,aGk="


def test_openai_chat() -> None:
    assert openai_chat.request(MODEL, ASKED) == {
        "model": "native/m",
        "messages": [
            {"role": "system", "content": "be terse"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": URL}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "read"},
                    {"type": "file", "file": {"filename": "x.pdf", "file_data": PDF}},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
            }
        ],
        "tool_choice": "required",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
        },
        "reasoning_effort": "high",
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 9,
    }


def test_openai_responses() -> None:
    assert openai_responses.request(MODEL, ASKED) == {
        "model": "native/m",
        "store": False,
        "instructions": "be terse",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "read"},
                    {"type": "input_file", "filename": "x.pdf", "file_data": PDF},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "name": "f",
                "description": "d",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "tool_choice": "required",
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}},
        "reasoning": {"effort": "high", "summary": "auto"},
        "temperature": 0,
        "max_output_tokens": 9,
    }


def test_anthropic_messages() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
    assert anthropic_messages.request(MODEL, ASKED) == {
        "model": "native/m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "be terse", **cached}],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "look"}, {"type": "image", "source": source}],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}],
            },
            {
                "role": "user",  # Anthropic: a tool's result is the user's, and roles alternate
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "42"}]},
                    {"type": "text", "text": "read"},
                    {"type": "document", "source": pdf, "title": "x.pdf", **cached},
                ],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
        "temperature": 0,
    }


@each_of("format_", list(FORMATS))
def test_the_controls_count_and_the_input_wins(format_: str) -> None:
    # issue: "parameters that override default"
    model = msgspec.structs.replace(MODEL, default={"temperature": 1, "top_p": 0.5}, effort="low")
    body = FORMATS[format_].request(
        model, ModelInput(said=(PromptMessage("user", (PromptText("hi"),)),), parameters={"top_p": 0.9})
    )
    assert (body["temperature"], body["top_p"]) == (1, 0.9)
    assert "low" in msgspec.json.encode(body).decode()
    auto = FORMATS[format_].request(MODEL, ModelInput(said=(PromptMessage("user", (PromptText("hi"),)),)))
    assert not {"reasoning", "reasoning_effort", "output_config", "tools", "system"} & set(auto)


def test_google_has_no_effort_above_high() -> None:
    body = openai_chat.google_request(MODEL, msgspec.structs.replace(ASKED, effort="xhigh"))
    assert body["reasoning_effort"] == "high"


@each_of("format_", list(FORMATS))
def test_a_longer_conversation_begins_with_the_shorter_one(format_: str) -> None:
    # issue: "stable prefix so that providers' prompt caches hit"
    def messages(count: int) -> list[Any]:
        said = tuple(
            PromptMessage("assistant" if n % 2 else "user", (PromptText(f"text {n}"),)) for n in range(count)
        )
        body = FORMATS[format_].request(MODEL, ModelInput(said=said, system="s"))
        text = msgspec.json.encode(body.get("messages", body.get("input"))).replace(
            b',"cache_control":{"type":"ephemeral"}', b""
        )
        made: list[Any] = msgspec.json.decode(text)
        return made

    short, long = messages(3), messages(5)
    assert long[: len(short)] == short


@each_of(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        ({"type": "object", "properties": {}, "required": [], "additionalProperties": False}, True),
        ({"type": "object"}, False),
        (SCHEMA | {"required": []}, False),
        ({"type": "array", "items": SCHEMA}, True),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"type": "string"}, True),
    ],
)
def test_strict_mode_is_asked_for_where_the_schema_allows_it(schema: Any, strict: bool) -> None:
    assert is_strict(schema) is strict


def test_null_leaves_a_field_out() -> None:
    model = msgspec.structs.replace(MODEL, default={"stream_options": None, "top_p": 1})
    said = (PromptMessage("user", (PromptText("hi"),)),)
    body = openai_chat.request(model, ModelInput(said=said, parameters={"top_p": None}))
    assert set(body) == {"model", "messages"}
