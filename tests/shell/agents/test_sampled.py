"""An answer of a model to an MCP server: the part of it that reaches the agent's user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cortexfs.agents.budget import BudgetLimits, RunBudget
from cortexfs.agents.server_questions import SampledQuestion
from cortexfs.core.frames import Delta, Frame, Progress, ReasoningDelta, Usage


async def test_thoughts_about_what_a_server_says_are_not_the_agents() -> None:
    heard: list[Frame] = []

    async def say(*said: Frame) -> None:
        heard.extend(said)

    who = SimpleNamespace(_replace=lambda identity: identity)
    turn: Any = SimpleNamespace(uid=1000, who=who, say=say)
    budget, identity = RunBudget(BudgetLimits()), SimpleNamespace()
    asked = SampledQuestion(turn, identity, {}, budget, quiet=True)  # type: ignore[arg-type]
    await asked.say(
        ReasoningDelta(text="Allow git.push?"),
        Delta(text="hello"),
        Progress(message="it waits"),
        Usage(input_tokens=3, output_tokens=4),
    )
    assert heard == [Progress(message="it waits")]
    assert (asked.text, budget.usage) == ("hello", Usage(input_tokens=3, output_tokens=4))
