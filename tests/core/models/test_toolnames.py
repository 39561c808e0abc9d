"""Names of tools, encoded for providers and decoded again."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.frames import Message, ToolCall
from cortexfs.core.models.sse import ServerEvent
from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import (
    ModelInput,
    PastCall,
    PromptMessage,
    PromptText,
    ToolOffer,
    model_input,
)
from cortexfs.models.drivers import FORMATS
from cortexfs.models.formats.format import sent
from tests.tables import each_of

MODEL = ModelEntry(name="p/m", id="m")
# The characters that function names of OpenAI, Anthropic and Google have in common.
TAKEN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
COMPONENT = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._+-]{0,63}", fullmatch=True)  # abi.md 2.1


def asking(*tools: str, calls: tuple[str, ...] = (), choice: str = "") -> ModelInput:
    said = [PromptMessage("user", (PromptText("hi"),))]
    for number, name in enumerate(calls):
        said.append(PromptMessage("assistant", (), (PastCall(f"c{number}", name),)))
        said.append(PromptMessage("tool", (PromptText("done"),), (), f"c{number}"))
    return ModelInput(
        said=tuple(said), tools=tuple(ToolOffer(name, "", {}) for name in tools), tool_choice=choice
    )


def names_in(body: Any) -> list[str]:
    """Returns every name of a tool or call in a request."""
    if isinstance(body, list):
        return [name for each in body for name in names_in(each)]
    if not isinstance(body, dict):
        return []
    own = [body["name"]] if isinstance(body.get("name"), str) else []
    return own + [name for each in body.values() for name in names_in(each)]


@each_of("format_", FORMATS)
def test_a_request_has_no_name_that_a_provider_refuses(format_: str) -> None:
    # abi.md 2.1: a component has dots and plus signs
    body = FORMATS[format_].request(
        MODEL, asking("fs.read", "c++", calls=("fs.read", "old.tool"), choice="fs.read")
    )
    assert sorted(set(names_in(body))) == ["c__", "fs_read", "old_tool"]
    assert names_in(body["tool_choice"]) == ["fs_read"]


STREAMS: dict[str, list[Any]] = {
    "openai.chat": [
        {"choices": [{"delta": {"tool_calls": [{"id": "c", "function": {"name": "fs_read"}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ],
    "openai.responses": [
        {
            "type": "response.output_item.done",
            "item": {"type": "function_call", "call_id": "c", "name": "fs_read", "arguments": "{}"},
        },
        {"type": "response.completed"},
    ],
    "anthropic.messages": [
        {"type": "message_start"},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "c", "name": "fs_read"},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ],
}
STREAMS["google"] = STREAMS["openai.chat"]


@each_of("format_", FORMATS)
@each_of(
    ("tools", "name"),
    [
        (("fs.read",), "fs.read"),
        (("fs.read", "fs_read"), "fs_read"),  # a valid name stays as it is
        (("fs.list",), "fs_read"),  # the name of no tool: passed on as it came
        ((), "fs_read"),
    ],
)
def test_a_call_comes_back_under_our_name(format_: str, tools: tuple[str, ...], name: str) -> None:
    reader = FORMATS[format_].reader(asking(*tools))
    said = [
        frame for row in STREAMS[format_] for frame in reader.read(ServerEvent("", json.dumps(row).encode()))
    ]
    said += reader.end()
    assert [frame for frame in said if isinstance(frame, ToolCall)] == [
        ToolCall(call="c", name=name, input={})
    ]


def test_a_reader_that_renames_is_otherwise_the_format_s() -> None:
    reader = FORMATS["openai.chat"].reader(asking("fs.read"))
    reader.read(ServerEvent("", b'{"choices":[{"delta":{"content":"hi"}}]}'))
    assert (reader.ended, reader.text) == (False, "hi")
    reader.read(ServerEvent("", b"[DONE]"))
    assert reader.ended
    assert isinstance(reader.end()[0], Message)


def test_names_that_would_be_one_are_set_apart() -> None:
    assert sent(["a.b", "a+b", "a_b", "a_b_2", "ok"]) == {"a.b": "a_b_3", "a+b": "a_b_4"}


def test_a_call_of_an_earlier_turn_does_not_change_what_the_tools_are_called() -> None:
    # issue 4: "stable prefix so that providers' prompt caches hit"
    request = FORMATS["openai.chat"].request
    before = request(MODEL, asking("fs.read"))
    assert request(MODEL, asking("fs.read", calls=("fs_read", "fs+read")))["tools"] == before["tools"]


@given(st.lists(COMPONENT, max_size=30))
def test_each_tool_has_a_name_of_its_own_that_providers_take(names: list[str]) -> None:
    renamed = sent(names)
    out = {name: renamed.get(name, name) for name in names}
    assert all(TAKEN.fullmatch(name) for name in out.values())
    assert len(set(out.values())) == len(out)
    assert sent(names) == renamed


@given(COMPONENT)
def test_every_name_of_a_tool_can_be_asked_with(name: str) -> None:
    what = model_input({"input": "hi", "tools": [{"name": name}]})
    assert [tool.name for tool in what.tools] == [name]
