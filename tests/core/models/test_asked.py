"""Questions to a model: every shape that an input may have."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Message
from cortexfs.core.frames import Text as Said
from cortexfs.core.registry import Object
from cortexfs.models.ask.model import model_of
from cortexfs.models.ask.question import ModelInput, PastCall, PromptMedia, PromptText, ToolOffer, model_input
from cortexfs.models.ask.question import PromptMessage as Turn
from tests.tables import each_of

PNG = {"type": "image", "media_type": "image/png", "data": "aGk="}
USER = {"role": "user", "content": "hi"}


def message(role: str, text: str) -> Message:
    return Message(role=role, content=[Said(text)])


HISTORY = [message("user", "one"), message("assistant", "two"), message("assistant", "  ")]
REMEMBERED = (Turn("user", (PromptText("one"),)), Turn("assistant", (PromptText("two"),)))
HI = Turn("user", (PromptText("hi"),))


@each_of(
    "value",
    [
        "hi",
        {"input": "hi"},
        {"task": "hi"},
        {"content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"messages": [USER]},
    ],
)
def test_text_in_every_shape_continues_the_session(value: Any) -> None:
    # issue: "sessions with history sent as real messages"
    assert model_input(value, HISTORY) == ModelInput(said=(*REMEMBERED, HI))


def test_messages_with_an_assistant_s_are_the_whole_conversation() -> None:
    value = {"messages": [USER, {"role": "assistant", "content": "x"}, USER]}
    whole = model_input(value, HISTORY)
    assert whole.is_complete
    assert whole.said == (HI, Turn("assistant", (PromptText("x"),)), HI)


def test_everything_that_an_input_may_say() -> None:
    # issue: "text, image and file parts, system, tools, schema (structured output, validated), parameters"
    value = {
        "system": "be terse",
        "messages": [
            {"role": "system", "content": "and kind"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, PNG]},
            {"role": "assistant", "tool_calls": [{"call": "c1", "name": "f", "input": {"a": 1}}]},
            {"role": "tool", "call": "c1", "content": "42", "is_error": True},
        ],
        "tools": [{"name": "f", "description": "d", "schema": {"type": "object"}}],
        "tool_choice": "f",
        "schema": {"type": "object"},
        "effort": "high",
        "temperature": 0.5,
    }
    assert model_input(value) == ModelInput(
        said=(
            Turn("user", (PromptText("hi"), PromptMedia("image", "image/png", "aGk="))),
            Turn("assistant", (), (PastCall("c1", "f", {"a": 1}),)),
            Turn("tool", (PromptText("42"),), (), "c1", True),
        ),
        system="be terse\n\nand kind",
        tools=(ToolOffer("f", "d", {"type": "object"}),),
        tool_choice="f",
        schema={"type": "object"},
        parameters={"temperature": 0.5},
        effort="high",
        is_complete=True,
    )


def test_what_openai_s_clients_send_is_understood() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    value = {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/i.png"}}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,aGk="}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": function}],
    }
    got = model_input(value)
    assert got.said[0].parts == (PromptMedia("image", url="https://x/i.png"),)
    assert got.said[1].parts == (PromptMedia("image", "image/png", "aGk="),)
    assert got.said[2].calls == (PastCall("c", "f", {"a": 1}),)
    assert got.said[3].call == "c"
    assert got.tools == (ToolOffer("f", "d", {"type": "object"}),)


WRONG: list[tuple[Any, str]] = [
    ({"messages": []}, "empty"),
    ({"messages": [{"role": "user", "content": ""}]}, "empty"),
    ({"messages": [{"role": "king", "content": "x"}]}, r"messages\[0\]\.role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]\.call"),
    ({"content": [{"type": "video"}]}, r"content\[0\]\.type: expected text, image or file"),
    ({"content": [{"type": "image", "path": "/etc/passwd"}]}, "cannot read your files"),
    ({"content": [PNG | {"data": "no!"}]}, r"content\[0\]\.data: is not base64"),
    ({"content": [PNG | {"data": 7}]}, r"content\[0\]\.data: expected a string, got number"),
    ({"content": [PNG | {"media_type": "png"}]}, "media type"),
    ({"content": [{"type": "image", "url": "file:///etc/passwd"}]}, "http"),
    ({"content": [{"type": "image_url", "image_url": {}}]}, "expected a string"),
    ({"content": "x", "model": "other"}, "model: cannot be set here"),
    ({"content": "x", "stream": False}, "stream: cannot be set here"),
    ({"content": "x", "schema": "x"}, "schema"),
    ({"content": "x", "effort": "huge"}, "effort"),
    ({"content": "x", "tools": [{"name": "a b"}]}, r"tools\[0\]\.name"),
    ({"content": "x", "tools": [{}]}, r"tools\[0\]"),
    ({"content": "x"} | {f"p{n}": 1 for n in range(101)}, "101 parameters"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": "{"}}]}]},
        r"messages\[0\]\.tool_calls\[0\]",
    ),
    (
        {"messages": [{"role": "usr", "content": "x"}]},
        r"messages\[0\]\.role: 'usr' is not one of system, dev",
    ),
]


@each_of(("value", "words"), WRONG)
def test_what_is_wrong_is_told_with_its_path(value: Any, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        model_input(value)
    assert caught.value.code == "EINVAL"


def test_a_models_own_system_prompt_is_for_questions_without_one() -> None:
    # issue: "`model new --set system=` does what it says"
    controls = {"id": "m", "limit": "", "default": "system=be terse\ntemperature=0\n", "effort": ""}
    model = model_of(Object(class_="model", name="p/m", description=""), lambda _, name: controls[name])
    assert (model.system, model.default) == ("be terse", {"temperature": 0})
    assert model_input("x", (), model.system).system == "be terse"
    assert model_input({"content": "x"}, (), model.system).system == "be terse"
    assert model_input({"content": "x", "system": "in verse"}, (), model.system).system == "in verse"
    assert model_input("x").system == ""
