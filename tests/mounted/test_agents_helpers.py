"""Starts of an agent from inside another agent's run: the same rules hold for agent.run and for a shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted

# docs/agents.md: "Each start is asked about"
BY_HAND = ["{root}/agent/{helper} hello", '{root}/tool/agent.run \'{{"name":"{helper}","task":"hello"}}\'']


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture(scope="module")
def boss(ctx: Ctx) -> Iterator[str]:
    """An agent whose policy lets it start the agent mate, which repeats its input."""
    with agent(ctx, "boss", "shell.exec", "agent.run") as path, agent(ctx, "mate", "", model="debug/echo"):
        policy = (ctx.root / f"{path}.d/policy").read_text()
        more = "allow boss_t agent:mate start\nallow boss_t model:debug/echo use\n"
        write(ctx, path, "policy", policy + more)
        yield path


def told(ctx: Ctx, path: str, tool: str, /, **input_: object) -> str:
    """Returns the output of an approved call."""
    with working(ctx, path, script(call(tool, **input_), say("x"))) as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        frames = [asked]
        while frames[-1]["type"] != "done":
            frames.append(client.frame())
            if frames[-1]["type"] == "approval":  # about a program that the shell runs
                client.ask("approve", run=asked["run"], call=frames[-1]["call"], decision="deny")
    return str(results(frames)[-1]["output"])


def test_agent_run_is_asked_about_and_starts_it(ctx: Ctx, boss: str) -> None:
    assert told(ctx, boss, "agent.run", name="mate", task="hello") == "hello"
    # agents.md: "by a policy line"; the rights of the helper do not matter for who may start it
    assert ctx.ctx("policy", "explain", boss, "agent/mate").stdout.startswith(
        f"{boss} may start agent:mate: "
    )


@pytest.mark.parametrize("by_hand", BY_HAND)
def test_a_shell_that_was_allowed_is_no_leave_to_start_one(ctx: Ctx, boss: str, by_hand: str) -> None:
    words = by_hand.format(root=ctx.root, helper="mate")
    output = told(ctx, boss, "shell.exec", cmd=f"{words} 2>&1; true")
    assert "must be confirmed, and no person can be asked" in output or "the user did not allow it" in output
    assert "hello" not in output


@pytest.mark.parametrize("by_hand", BY_HAND)
def test_where_nothing_is_asked_about_a_shell_starts_one_too(ctx: Ctx, boss: str, by_hand: str) -> None:
    words = by_hand.format(root=ctx.root, helper="mate")
    settings = ctx.config / "policy.toml"
    settings.write_text('mode = "open"\n')
    try:
        with working(ctx, boss, script(call("shell.exec", cmd=f"{words} 2>&1"), say("x"))) as client:
            *_, one = results(client.until("done", status="ok"))
    finally:
        settings.unlink()
    assert '"status":"ok"' in one["output"]
    assert "hello" in one["output"]
