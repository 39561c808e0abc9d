"""A server that does not list its models' abilities: agents use the abilities that a test call shows.

docs/models.md, "Names": "ask each to call a tool". Once, a server with tools still got the text protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mounted.acting import acting
from tests.mounted.agents import agent, results, run
from tests.mounted.ctx_mount import Ctx, mounted
from tests.shell.provider_server import SSE, Move, Provider, Request, chat, chunks, ended, status


class Able(Provider):
    """Two models: `able` calls the first tool that it is offered, `chatty` only talks."""

    async def moves(self, request: Request) -> Sequence[Move]:
        if request.method == "GET":
            return status(200, {"data": [{"id": "able"}, {"id": "chatty"}]})
        said, tools = request.body["messages"], request.body.get("tools")
        if request.body["model"] != "able" or not tools or said[-1]["role"] == "tool":
            return chat("done") if request.body.get("stream") else status(200, reply(content="done"))
        function = {"name": tools[0]["function"]["name"], "arguments": '{"text": "a b"}'}
        call = {"index": 0, "id": "c1", "type": "function", "function": function}
        if not request.body.get("stream"):
            return status(200, reply(tool_calls=[call]))
        delta = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
        return [SSE, *chunks(delta, ended("tool_calls"), "[DONE]")]


def reply(**message: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "message": message}]}


@pytest.fixture
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python) as mount:
        yield mount


def test_what_has_called_a_tool_is_given_tools(ctx: Ctx) -> None:
    with acting(Able([])) as server:
        words = ("--base-url", server.base_url, "--format", "openai.chat")
        said = ctx.ctx("provider", "add", "near", *words).stderr
        assert "2 models listed; able called a tool when asked to" in said
        caps = {name: (ctx.root / f"model/near/{name}.d/cap").read_text() for name in ("able", "chatty")}
        assert ["tool_call_syntax" in caps[name].split() for name in caps] == [True, False]
        with agent(ctx, "worker", "text.word_count", model="near/able") as path:
            frames = run(ctx, path, "count").frames
        assert [one["output"][:2] for one in results(frames)] == ["2 "]
        assert any("tools" in request.body for request in server.requests if request.method == "POST")
