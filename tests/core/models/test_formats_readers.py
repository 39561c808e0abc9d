"""Events of each format as frames."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Frame, Message, Progress, ReasoningDelta, ToolCall, Usage
from cortexfs.core.models.sse import ServerEvent
from cortexfs.models.ask.question import ModelInput, PromptMessage, PromptText
from cortexfs.models.drivers import FORMATS
from cortexfs.models.formats.format import ProviderRefusal, arguments
from tests.tables import each_of

ASKED = ModelInput(said=(PromptMessage("user", (PromptText("hi"),)),))


def read(format_: str, *rows: Any) -> list[Frame]:
    reader = FORMATS[format_].reader(ASKED)
    said: list[Frame] = []
    for row in rows:
        data = row if isinstance(row, bytes) else json.dumps(row).encode()
        said += reader.read(ServerEvent("", data))
    return [*said, *reader.end()]


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: int | None = None, arguments: str = "", **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    return {"index": index, "function": {"name": name, "arguments": arguments}, **fields}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def more(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def said(text: str) -> Message:
    return Message(role="assistant", content=[frames.Text(text)])


DONE = b"[DONE]"
BEGUN = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 4}}}
STOP = {"type": "message_stop"}
CALLS = [ToolCall(call="c1", name="f", input={"a": 1}), ToolCall(call="c2", name="g", input={})]
UNNAMED = [ToolCall(call="call1", name="f", input={"a": 1}), ToolCall(call="call2", name="g", input={})]
# Pieces of different calls that share one index, or have none.
BOTH = [
    *([call(at, '{"a":1}', id="c1", name="f"), call(at, "{}", id="c2", name="g")] for at in (0, 1, None)),
    [call(0, '{"a"', id="c1", name="f"), call(0, ":1}"), call(0, "{", id="c2", name="g"), call(0, "}")],
]
NO_IDS = [call(0, '{"a":1}', name="f"), call(0, "{}", name="g")]
ONE = [call(0, '{"a"', id="c1", name="f"), call(0, ":", id="other"), call(0, "1}", id="c1", name="f")]

WHOLE: list[tuple[str, list[Any], list[Frame]]] = [
    ("openai.chat", [chunk(content="a"), chunk("stop")], [Delta(text="a"), said("a")]),
    ("openai.chat", [chunk(content="a"), DONE], [Delta(text="a"), said("a")]),
    (
        "openai.chat",
        [chunk(role="assistant", content=""), chunk(reasoning_content="hm"), chunk(reasoning="m"), DONE],
        [ReasoningDelta(text="hm"), ReasoningDelta(text="m"), said("")],
    ),
    (
        "openai.chat",
        [
            chunk(tool_calls=[call(0, id="c1", name="f")]),
            chunk(tool_calls=[call(0, '{"a"')]),
            chunk(tool_calls=[call(1, id="c2", name="g")]),
            chunk(tool_calls=[call(0, ":1}")]),
            chunk("tool_calls"),
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            DONE,
        ],
        [*CALLS, Usage(input_tokens=3, output_tokens=4)],
    ),
    (
        "openai.chat",
        [chunk("stop", tool_calls=[call(None, "not json", name="f")])],
        [ToolCall(call="call1", name="f", input="not json")],
    ),
    (
        "openai.chat",
        [chunk("length", content="a")],
        [Delta(text="a"), said("a"), Progress(message="the answer was cut at max_tokens")],
    ),
    (
        "openai.responses",
        [
            {"type": "response.created", "sequence_number": 0, "response": {"error": None}},
            {"type": "response.reasoning_summary_text.delta", "sequence_number": 1, "delta": "hm"},
            {"type": "response.output_text.delta", "sequence_number": 2, "delta": "a"},
            {"type": "response.output_text.delta", "sequence_number": 2, "delta": "a"},
            {
                "type": "response.output_item.done",
                "sequence_number": 3,
                "output_index": 1,
                "item": {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            },
            {"type": "unknown.event", "sequence_number": 4, "anything": [1]},
            {
                "type": "response.completed",
                "sequence_number": 5,
                "response": {"usage": {"input_tokens": 3, "output_tokens": 4}},
            },
        ],
        [
            ReasoningDelta(text="hm"),
            Delta(text="a"),
            CALLS[0],
            said("a"),
            Usage(input_tokens=3, output_tokens=4),
        ],
    ),
    (
        "anthropic.messages",
        [
            BEGUN,
            {"type": "ping"},
            block(0, type="thinking", thinking=""),
            more(0, type="thinking_delta", thinking="hm"),
            more(0, type="signature_delta", signature="x"),
            {"type": "content_block_stop", "index": 0},
            block(1, type="text", text=""),
            more(1, type="text_delta", text="a"),
            {"type": "content_block_stop", "index": 1},
            block(2, type="tool_use", id="c1", name="f", input={}),
            more(2, type="input_json_delta", partial_json=""),
            more(2, type="input_json_delta", partial_json='{"a":'),
            more(2, type="input_json_delta", partial_json="1}"),
            {"type": "content_block_stop", "index": 2},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
            STOP,
        ],
        [
            ReasoningDelta(text="hm"),
            Delta(text="a"),
            CALLS[0],
            said("a"),
            Usage(input_tokens=7, output_tokens=9),
        ],
    ),
]


@each_of(("format_", "rows", "expected"), WHOLE)
def test_events_as_frames(format_: str, rows: list[Any], expected: list[Frame]) -> None:
    # issue: "Output: delta, reasoning_delta, tool_call, usage, message, done"
    assert read(format_, *rows) == expected


@each_of(
    ("pieces", "expected"),
    [
        *((pieces, CALLS) for pieces in BOTH),
        (NO_IDS, UNNAMED),
        (ONE, CALLS[:1]),
    ],
)
def test_calls_that_share_an_index(pieces: list[Any], expected: list[Frame]) -> None:
    # abi.md 6.6
    chunks = [chunk(tool_calls=[piece]) for piece in pieces]
    assert read("openai.chat", *chunks, chunk("tool_calls"), DONE) == expected


def test_a_call_without_a_name_gets_one() -> None:
    # agents.md: "The model hears of it, of denials and failures too": the call goes along with its result
    nameless = chunk(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "", "arguments": "{}"}}])
    (call,) = read("openai.chat", nameless, chunk("tool_calls"), DONE)
    assert call == ToolCall(call="c1", name="unnamed", input={})


WRONG: list[tuple[str, list[Any], str]] = [
    ("openai.chat", [], "EREMOTEIO"),
    ("openai.chat", [chunk(content="a")], "EREMOTEIO"),
    ("openai.chat", [b"{"], "EREMOTEIO"),
    ("openai.chat", [b"\xff"], "EREMOTEIO"),
    ("openai.chat", [{"choices": "x"}], "EREMOTEIO"),
    ("openai.chat", [{"anything": 1}], "EREMOTEIO"),
    ("openai.chat", [b"[" * 100_000], "EREMOTEIO"),
    ("openai.chat", [chunk("content_filter", content="a")], "EPERM"),
    ("openai.responses", [], "EREMOTEIO"),
    ("openai.responses", [{"type": "response.created", "sequence_number": 0}] * 2, "EREMOTEIO"),
    ("anthropic.messages", [BEGUN], "EREMOTEIO"),
    ("anthropic.messages", [BEGUN, BEGUN], "EREMOTEIO"),
    ("anthropic.messages", [more(0, type="text_delta", text="a")], "EREMOTEIO"),
    ("anthropic.messages", [block(0, type="text"), STOP], "EREMOTEIO"),
    ("anthropic.messages", [block(0, type="text"), block(0, type="text")], "EREMOTEIO"),
    ("anthropic.messages", [{"type": "message_start", "message": {"usage": 7}}], "EREMOTEIO"),
    ("anthropic.messages", [{"type": "message_delta", "delta": {"stop_reason": "refusal"}}, STOP], "EPERM"),
]


@each_of(("format_", "rows", "code"), WRONG)
def test_a_stream_that_is_no_answer(format_: str, rows: list[Any], code: str) -> None:
    with pytest.raises(Fault) as caught:
        read(format_, *rows)
    assert caught.value.code == code


@each_of(
    ("row", "why"),
    [
        (chunk(content=[{"type": "text"}]), "choices[0].delta.content: expected string, got array"),
        (
            chunk(tool_calls=[{"function": {"arguments": {}}}]),
            "choices[0].delta.tool_calls[0].function.arguments: expected string, got object",
        ),
        ([], "it: expected object, got array"),
    ],
)
def test_the_part_of_an_event_that_is_wrong_is_named(row: Any, why: str) -> None:
    # abi.md 8.53
    with pytest.raises(Fault) as caught:
        read("openai.chat", row)
    assert caught.value.message.endswith(f": an event does not fit the format: {why}")


@each_of(
    ("format_", "row"),
    [
        ("openai.chat", {"error": {"message": "x"}}),
        ("openai.responses", {"type": "error", "message": "x"}),
        ("openai.responses", {"type": "response.failed", "response": {"error": {"message": "x"}}}),
        ("anthropic.messages", {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
    ],
)
def test_an_error_in_the_stream(format_: str, row: Any) -> None:
    with pytest.raises(ProviderRefusal):
        read(format_, row)


def test_an_answer_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortexfs.models.formats.format.MAX_ANSWER", 1000)
    with pytest.raises(Fault, match="EREMOTEIO"):
        read("openai.chat", *[chunk(content="x" * 100)] * 11)
    with pytest.raises(Fault, match="EREMOTEIO"):
        read("openai.chat", *[chunk(reasoning="x" * 100)] * 11)


@each_of(
    ("text", "input_"),
    [
        ("", {}),
        ('{"path": "x"}', {"path": "x"}),
        ('{"path": "x"', '{"path": "x"'),
        # core/jsontext.py: other languages could not read the log with deeper or longer JSON
        ('{"a":' * 200 + "1" + "}" * 200, '{"a":' * 200 + "1" + "}" * 200),
        ('{"a":1' + "0" * 30 + "}", '{"a":1' + "0" * 30 + "}"),
        ('{"a":1e999}', '{"a":1e999}'),
    ],
)
def test_the_input_of_a_call(text: str, input_: object) -> None:
    assert arguments(text) == input_
