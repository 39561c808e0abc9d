"""Sessions with a server that ask clients by way of answers: the client that gets a session next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp import MCPError

from cortexfs.client.results import Failed
from cortexfs.core.mcp_session import ServerMessage
from cortexfs.mcp import rounds
from cortexfs.mcp.relay import Way
from cortexfs.mcp.rounds import Rounds


class Relay:
    def __init__(self, *_: object) -> None:
        self.is_held = False

    async def listen(self, _: object) -> None:
        self.is_held = True
        try:
            await anyio.sleep_forever()
        finally:
            self.is_held = False


def asked() -> Any:
    can = SimpleNamespace(elicitation={}, sampling=None, roots=None)
    session = SimpleNamespace(client_capabilities=can)
    return SimpleNamespace(session=session, protocol_version="2026-07-28", method="tools/call", params={})


async def test_a_session_with_a_call_that_was_given_up_is_nobody_else_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the server may continue that call, and its question would reach the next caller
    monkeypatch.setattr(rounds, "McpRelay", Relay)
    made: list[Any] = []

    async def good(relay: Any, _: Way) -> dict[str, Any]:
        made.append(relay)
        return {}

    async def fails(relay: Any, _: Way) -> dict[str, Any]:
        made.append(relay)
        raise Failed("ETIMEDOUT", "late", None)

    async def hangs(relay: Any, _: Way) -> dict[str, Any]:
        made.append(relay)
        leaves.cancel()
        await anyio.sleep_forever()
        return {}

    async with anyio.create_task_group() as tasks:
        said = Rounds("tool/a.mcp")
        channel: Any = None
        await said.result(tasks, asked(), channel, good)
        with anyio.CancelScope() as leaves:
            await said.result(tasks, asked(), channel, hangs)
        await said.result(tasks, asked(), channel, good)
        with pytest.raises(Failed):
            await said.result(tasks, asked(), channel, fails)
        await said.result(tasks, asked(), channel, good)
        first, again, second, third, last = made
        assert first is again
        assert second is third
        assert len({first, second, last}) == 3
        await anyio.wait_all_tasks_blocked()
        assert [each.is_held for each in (first, second, last)] == [False, False, True]
        tasks.cancel_scope.cancel()


async def asks(_: Any, way: Way) -> dict[str, Any]:
    answer = await way.question(ServerMessage("elicitation/create", {}, 1))
    return {"said": answer.result}


def with_state(state: str) -> Any:
    context = asked()
    context.params = {"requestState": state, "inputResponses": {"question": {"action": "accept"}}}
    return context


async def test_a_question_is_open_for_a_time_and_then_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/mcp-serve.md: "Its run waits ten minutes at most"
    monkeypatch.setattr(rounds, "McpRelay", Relay)
    channel: Any = None
    async with anyio.create_task_group() as tasks:
        waits = Rounds("tool/a.mcp")
        state = (await waits.result(tasks, asked(), channel, asks))["requestState"]
        assert await waits.result(tasks, with_state(state), channel, asks) == {"said": {"action": "accept"}}
        with pytest.raises(MCPError, match="make the request anew"):  # the state is valid once
            await waits.result(tasks, with_state(state), channel, asks)
        late = Rounds("tool/a.mcp", seconds=0)
        state = (await late.result(tasks, asked(), channel, asks))["requestState"]
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(MCPError, match="make the request anew"):
            await late.result(tasks, with_state(state), channel, asks)
        tasks.cancel_scope.cancel()


async def test_so_many_wait_for_an_answer_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/mcp-serve.md: "24 runs may wait"
    monkeypatch.setattr(rounds, "McpRelay", Relay)
    channel: Any = None
    async with anyio.create_task_group() as tasks:
        said = Rounds("tool/a.mcp")
        states = [
            (await said.result(tasks, asked(), channel, asks))["requestState"] for _ in range(rounds.MAX_OPEN)
        ]
        with pytest.raises(MCPError):
            await said.result(tasks, asked(), channel, asks)
        assert await said.result(tasks, with_state(states[0]), channel, asks)
        states.append((await said.result(tasks, asked(), channel, asks))["requestState"])
        assert len({*states}) == rounds.MAX_OPEN + 1
        tasks.cancel_scope.cancel()
