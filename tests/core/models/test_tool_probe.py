"""Models without known abilities are asked to call a tool: docs/models.md, "Names"."""

from __future__ import annotations

import json
from collections.abc import Callable

from cortexfs.models.exchange import tool_probe
from cortexfs.models.providers.listing import BASIC, NATIVE, ListedModel
from cortexfs.models.providers.provider import Provider
from cortexfs.net.web import WebAnswer
from tests.tables import each_of

LOCAL = Provider("http://127.0.0.1:1/v1", "openai.chat")


def reply(**message: object) -> WebAnswer:
    return WebAnswer(200, {}, json.dumps({"choices": [{"message": message}]}).encode())


def called(name: str) -> WebAnswer:
    return reply(content=None, tool_calls=[{"id": "1", "function": {"name": name, "arguments": "{}"}}])


def asking(answer: Callable[[str], WebAnswer]) -> tuple[tool_probe.Post, list[tuple[str, str]]]:
    seen: list[tuple[str, str]] = []

    def post(url: str, headers: dict[str, str], body: bytes) -> WebAnswer:
        asked = json.loads(body)
        assert [each["function"]["name"] for each in asked["tools"]] == ["current_time"]
        seen.append((url, asked["model"]))
        return answer(asked["model"])

    return post, seen


def test_those_that_call_it_have_tools() -> None:
    post, seen = asking(lambda model: called("current_time") if model != "b" else reply(content="Noon."))
    provider = Provider(LOCAL.base_url + "/", LOCAL.format, models=("c",))
    found = [ListedModel("a"), ListedModel("b"), ListedModel("seer", cap=(*BASIC, "vision"))]
    able = tool_probe.able(provider, "k", found, post)
    assert able == ["c", "a"]
    assert seen == [(f"{LOCAL.base_url}/chat/completions", each) for each in ("c", "a", "b")]
    caps = {each.id: each.cap for each in tool_probe.completed(found, able)}
    assert caps == {"c": (*BASIC, NATIVE), "a": (*BASIC, NATIVE), "b": BASIC, "seer": (*BASIC, "vision")}


@each_of(
    "answer",
    [
        called("another"),
        WebAnswer(400, {}, called("current_time").body),
        WebAnswer(200, {}, b"<html>"),
        WebAnswer(200, {}, b"[" * 100_000),
        WebAnswer(200, {}, b'{"choices": [{"message": {"tool_calls": [1]}}]}'),
        reply(content="I cannot."),
        reply(content="", tool_calls=[]),
    ],
)
def test_what_is_no_call_tells_nothing(answer: WebAnswer) -> None:
    post, seen = asking(lambda model: answer)
    assert tool_probe.able(LOCAL, "", [ListedModel("a")], post) == []
    assert len(seen) == 1


def test_a_failure_tells_nothing() -> None:
    def post(url: str, headers: dict[str, str], body: bytes) -> WebAnswer:
        raise TimeoutError

    assert tool_probe.able(LOCAL, "", [ListedModel("a")], post) == []


@each_of(
    ("provider", "count"),
    [
        (LOCAL, tool_probe.MOST + 1),
        (Provider(LOCAL.base_url, LOCAL.format, tools=True), 1),
        (Provider(LOCAL.base_url, "openai.responses"), 1),
    ],
)
def test_many_known_and_other_ones_are_not_asked(provider: Provider, count: int) -> None:
    post, seen = asking(lambda model: called("current_time"))
    assert tool_probe.able(provider, "", [ListedModel(f"m{n}") for n in range(count)], post) == []
    assert seen == []
