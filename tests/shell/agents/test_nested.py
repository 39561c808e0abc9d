"""Nested calls of an agent, without a mount: their greatest number, and their end at the end of the run."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from cortexfs.agents import nested
from cortexfs.agents.calls import MeantCall, Standing
from cortexfs.agents.nested import MAX_CALLS, MAX_TOLD, NestedCalls, NestedPorts
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame, ToolCall, ToolResult
from cortexfs.core.hostcalls import Capabilities, Effect
from cortexfs.core.policy.decision import Decision
from cortexfs.core.registry import Object
from tests.shell.agent_runs import TOOL, Played

SHELL = replace(
    TOOL,
    name="shell.exec",
    origin="builtin",
    capabilities=Capabilities(effects=(Effect("run_process", "reversible", "on_risk", "not_supported"),)),
)


async def unused(*asked: object) -> Any:
    raise AssertionError


class EndingHosts(Played):
    """A world that records the token of each host that it is asked to end."""

    def __init__(self) -> None:
        super().__init__(unused, unused)
        self.over: list[str] = []

    async def ended(self, token: str) -> None:
        await trio.lowlevel.checkpoint()
        self.over.append(token)


class Agent:
    """A run of an agent that allows every call. With `wait`, its decisions never come."""

    def __init__(self, wait: bool = False) -> None:
        self.said: list[Frame] = []
        self.number = 0
        self._wait = wait
        self.world = EndingHosts()
        ports = NestedPorts(self.decide, unused, Standing({}, 0), self.named, self.say, ("s",))
        self.calls = NestedCalls(self.world, "c", ports)

    async def decide(self, call: ToolCall, tool: Object, wanted: MeantCall, depth: int) -> Decision:
        if self._wait:
            await trio.sleep_forever()
        return Decision(True, "", "", False, False, ())

    def named(self, call: str) -> str:
        self.number += 1
        return f"{call}.{self.number}"

    async def say(self, *said: Frame) -> None:
        self.said += said


async def test_a_call_runs_so_many_tools_and_no_more() -> None:
    # abi.md 7.7: "A call of the shell runs at most 1,000 tools"
    agent = Agent()
    for _ in range(MAX_CALLS):
        await agent.calls.begin(TOOL, False, 0).log_end()
    with pytest.raises(Fault) as refused:
        agent.calls.begin(TOOL, False, 0)
    assert refused.value.code == "EMFILE"


async def test_what_goes_on_at_the_end_has_ended_and_is_heard_no_more() -> None:
    agent = Agent()
    ended, going = (agent.calls.begin(TOOL, False, 0) for _ in range(2))
    for one in (ended, going):
        assert await one.before({"x": 1}) == ({"x": 1}, [])
        one.begin({"x": 1})
    ended.end("x" * 2 * MAX_TOLD, None)
    agent.calls.close()
    await agent.calls.end()
    calls, results = agent.said[:2], agent.said[2:]
    assert [(one.call, one.parent) for one in calls if isinstance(one, ToolCall)] == [
        ("c.1", "c"),
        ("c.2", "c"),
    ]
    assert [one.is_error for one in results if isinstance(one, ToolResult)] == [False, True]
    assert len(str(results[0])) < MAX_TOLD + 500
    await going.log_end()
    assert agent.said == [*calls, *results]
    assert agent.world.nested.of(agent.calls.token) is None


async def test_a_host_ends_also_where_the_run_is_cancelled() -> None:
    agent = Agent()
    with trio.CancelScope() as scope:
        scope.cancel()
        await agent.calls.end()
    assert scope.cancelled_caught
    assert agent.world.over == [agent.calls.token]


async def test_a_shell_that_outlives_the_run_says_nothing_and_leaves_no_host() -> None:
    agent = Agent()
    inner = agent.calls.begin(SHELL, False, 0)
    known = agent.world.nested.of(inner.token)
    assert known is not None
    await known.begin(TOOL, False, 0).before({})
    agent.calls.close()
    await agent.calls.end()
    said = [*agent.said]
    await inner.log_end()
    assert agent.said == said
    assert agent.world.over == [agent.calls.token, inner.token]


async def test_who_waits_to_be_decided_about_is_let_go() -> None:
    agent = Agent(wait=True)
    one = agent.calls.begin(TOOL, False, 0)
    heard = []

    async def waits() -> None:
        with pytest.raises(Fault) as refused:
            await one.before({})
        heard.append(refused.value.code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked()
        agent.calls.close()
        await agent.calls.end()
    assert heard == ["ECANCELED"]


async def test_a_shell_below_has_a_token_that_ends_with_it_or_with_what_is_above() -> None:
    agent = Agent()
    inner, left = (agent.calls.begin(SHELL, False, 0) for _ in range(2))
    known = agent.world.nested.of
    assert len({inner.token, left.token, agent.calls.token}) == 3
    assert known(inner.token)
    await inner.log_end()
    assert known(inner.token) is None
    agent.calls.close()
    assert known(left.token) is None
    assert not agent.calls.begin(TOOL, False, 0).token


@pytest.mark.parametrize(
    ("tool", "alone"), [(TOOL, False), (SHELL, True), (replace(SHELL, origin="x"), False)]
)
def test_built_in_tools_that_run_programs_have_a_host_alone(tool: Object, alone: bool) -> None:
    assert nested.runs_programs(tool) is alone
