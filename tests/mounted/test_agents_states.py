"""Runs of agents that are cancelled, or whose daemon is killed, in states that are harder to reach than the
states of test_agents_faults.py; and the ends that a run may have. Quotes without a source are from the issue
that asked for agents."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mounted.agents import agent, call, results, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import Talk, history, talk
from tests.mounted.test_agents_faults import ENDLESS, await_pid, gone

HANGS = script([say("begun"), {"hang": True}])


class State(NamedTuple):
    """An agent, its task, and a function that waits until the run is in the state and returns its id."""

    path: str
    task: str
    reach: Callable[[Talk], str]


def grant(ctx: Ctx, path: str, *lines: str) -> None:
    policy = (ctx.root / f"{path}.d/policy").read_text()
    write(ctx, path, "policy", policy + "".join(f"{line}\n" for line in lines))


def allow(client: Talk) -> str:
    asked = client.until("approval")[-1]
    client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
    return str(asked["run"])


@contextlib.contextmanager
def a_summary_is_made(ctx: Ctx) -> Iterator[State]:
    with agent(ctx, "sums", "", model="debug/echo") as path:
        write(ctx, path, "window", "600\n")
        write(ctx, path, "system.md", "Be brief.\n")
        with talk(ctx, f"{path}.sock") as client:
            for number in range(8):
                client.send(f"{number} {'word ' * 80}", session="s")
                client.until("done", status="ok")
        grant(ctx, path, "allow sums_t model:fixture/waiting use")
        write(ctx, path, "model", "fixture/waiting\n")
        yield State(path, "go on", lambda client: str(client.until("progress")[-1]["run"]))


@contextlib.contextmanager
def a_plugins_model_answers(ctx: Ctx) -> Iterator[State]:
    with agent(ctx, "waits", "", model="fixture/waiting") as path:
        yield State(path, "x", lambda client: str(client.until("delta")[-1]["run"]))


@contextlib.contextmanager
def a_helper_works(ctx: Ctx) -> Iterator[State]:
    with agent(ctx, "boss", "agent.run") as path, agent(ctx, "mate", "fs.read"):
        grant(ctx, path, "allow boss_t agent:mate start")

        def reach(client: Talk) -> str:
            run = allow(client)
            ctx.at_rest(3)  # the agent, its tool, and the helper
            return run

        yield State(path, script(call("agent.run", name="mate", task=HANGS), say("on")), reach)


@contextlib.contextmanager
def one_call_runs_and_one_is_asked_about(ctx: Ctx) -> Iterator[State]:
    with agent(ctx, "twofold", "shell.exec") as path:
        # The calls may be asked about in any order.
        calls = [call("shell.exec", f"c{number}", cmd=f": {number}; {ENDLESS}") for number in (1, 2)]

        def reach(client: Talk) -> str:
            run = allow(client)
            client.until("approval")
            await_pid(client, ctx.work / "ran")
            return run

        yield State(path, script(calls, say("on")), reach)


STATES = [a_summary_is_made, a_plugins_model_answers, a_helper_works, one_call_runs_and_one_is_asked_about]


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, ["modeller"]) as mount:
        yield mount


@pytest.mark.parametrize("state", STATES)
def test_a_cancel(ctx: Ctx, state: Callable[[Ctx], contextlib.AbstractContextManager[State]]) -> None:
    # abi.md 5.26
    with state(ctx) as made, working(ctx, made.path, made.task, session="s") as client:
        run = made.reach(client)
        client.ask("cancel", id=run)
        assert not results(client.until("done", run=run, status="cancelled"))
        assert client.is_alive()
        ctx.at_rest(0)
    assert gone(ctx.work / "ran")


@pytest.mark.parametrize("state", STATES)
def test_a_daemon_that_is_killed(
    ctx: Ctx, state: Callable[[Ctx], contextlib.AbstractContextManager[State]]
) -> None:
    # "daemon kill -9 in each state (the run ends as error, nothing runs twice)"
    (ctx.work / "ran").unlink(missing_ok=True)
    with state(ctx) as made:
        with working(ctx, made.path, made.task, session="killed", id="m") as client:
            run = made.reach(client)
            os.kill(ctx.pid, signal.SIGKILL)
            client.rest(torn=True)
        ctx.mount()
        last = history(ctx, "killed", f"{made.path}.sock")[-1]
        assert (last["type"], last["run"], last["status"], last["code"]) == ("done", run, "error", "EIO")
        with working(ctx, made.path, made.task, session="killed", id="m") as client:
            assert client.until("done")[-1]["run"] == run  # a retry is the same run
        ctx.at_rest(0)
        ran = ctx.work / "ran"
        assert not ran.exists() or len(ran.read_text().split()) == 1
        assert gone(ran)


# -- the ends of a run


def test_a_tool_that_never_stops(python: Path) -> None:
    # "a tool that never stops": its own limit ends the call, the model hears of it, and the run goes on
    config = "[turn]\ntool_timeout_secs = 1\n"
    with mounted(python, [], config=config) as ctx, agent(ctx, "patient", "shell.exec") as path:
        task = script(call("shell.exec", cmd=ENDLESS, timeout_secs=600), say("went on"))
        with working(ctx, path, task) as client:
            allow(client)
            (told,) = results(client.until("done", status="ok"))
        assert told["is_error"]
        assert "ETIMEDOUT" in told["output"]
        ctx.at_rest(0)
        assert gone(ctx.work / "ran")


LIMITS = {
    "EDQUOT": [
        [{"usage": {"input_tokens": 900_000, "output_tokens": 200_000}}, call("fs.read", path=str(n))]
        for n in range(3)
    ],
    "EMFILE": [[call("fs.read", path=str(n)) for n in range(17)]],
}


@pytest.mark.parametrize("code", LIMITS)
def test_the_other_limits(ctx: Ctx, code: str) -> None:
    # "limits on steps, tokens, time and repeated identical calls, each with its own clear end"
    with (
        agent(ctx, "limited", "fs.read") as path,
        working(ctx, path, script(*LIMITS[code]), session=code) as client,
    ):
        frames = client.until("done", status="error")
    assert frames[-1]["code"] == code
    assert len(results(frames)) == (1 if code == "EDQUOT" else 0)
