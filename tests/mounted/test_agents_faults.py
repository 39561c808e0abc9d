"""Agents that are cancelled, killed, or never end, in each state of a run: the model answers, a tool runs, a
person is asked. Quotes without a source are from the issue that asked for agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mounted import agents
from tests.mounted.agents import agent, call, results, run, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted, wait_gone
from tests.mounted.talking import Talk, history, talk, text
from tests.waiting import until

ENDLESS = "echo $$ >> ran; trap '' TERM; while :; do sleep 0.2; done"

ctx, coder = agents.ctx, agents.coder

STATES = {
    "the model answers": script([say("begun"), {"hang": True}]),
    "a person is asked": script(call("fs.write", path="asked", content="x"), say("on")),
    "a tool runs": script(call("shell.exec", cmd=ENDLESS), say("on")),
}


def reach(client: Talk, state: str, ran: Path) -> str:
    """Wait until the run is in `state`, and return its id."""
    if state == "the model answers":
        return str(client.until("delta")[-1]["run"])
    asked = client.until("approval")[-1]
    if state == "a tool runs":
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        await_pid(client, ran)
    return str(asked["run"])


def await_pid(client: Talk, ran: Path) -> None:
    """Wait until the command has written its pid. A kill before the write would leave an empty file."""
    while not (ran.exists() and ran.read_text()):
        assert client.is_alive()


@pytest.mark.parametrize("state", STATES)
def test_a_cancel(ctx: Ctx, coder: str, state: str) -> None:
    # abi.md 5.26
    ran = ctx.work / "ran"
    ran.unlink(missing_ok=True)
    with working(ctx, coder, STATES[state], session=f"cancel-{len(state)}") as client:
        id_ = reach(client, state, ran)
        client.ask("cancel", id=id_)
        frames = client.until("done", status="cancelled")
        assert not results(frames)
        assert client.is_alive()
    assert gone(ran)


def gone(ran: Path) -> bool:
    """Returns True if the command is gone or never ran. Only a kill ends `ENDLESS`."""
    return not ran.exists() or all(map(wait_gone, map(int, ran.read_text().split())))


# Too much work to finish before the daemon learns that a runner was killed, even on a busy machine.
BUSY = script(*(call("fs.search", pattern=f"qqzzxxjj{n}", path="/usr", hidden=True) for n in range(30)))


@pytest.mark.parametrize("task", [STATES["the model answers"], BUSY])
def test_who_leaves_an_exec_cancels_it(ctx: Ctx, coder: str, task: str) -> None:
    # abi.md 4.32
    words = [str(ctx.root / coder), task]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ctx.work, env=ctx.environ) as process:
        assert process.stdout is not None
        start = json.loads(process.stdout.readline())
        while json.loads(process.stdout.readline())["type"] not in ("delta", "tool_call"):
            pass
        process.kill()
        process.stdout.read()
    log = ctx.root / f"{coder}.d/log"
    ends = until(
        lambda: [one for one in map(json.loads, log.read_text().splitlines()) if one["run"] == start["run"]]
    )
    assert ends[0]["status"] == "cancelled"


@pytest.mark.parametrize("state", STATES)
def test_a_daemon_that_is_killed(python: Path, state: str) -> None:
    # "daemon kill -9 in each state (the run ends as error, nothing runs twice)"
    with mounted(python, []) as ctx, agent(ctx, "coder") as coder:
        ran = ctx.work / "ran"
        with working(ctx, coder, STATES[state], session="s", id="m") as client:
            id_ = reach(client, state, ran)
            os.kill(ctx.pid, signal.SIGKILL)
            client.rest(torn=True)
        ctx.mount()
        frames = history(ctx, "s", f"{coder}.sock")
        assert frames[-1] | {"id": ""} == {
            "type": "done",
            "id": "",
            "run": id_,
            "status": "error",
            "code": "EIO",
        }
        # A retry is the same run, and repeats no step.
        with working(ctx, coder, STATES[state], session="s", id="m") as client:
            assert client.until("done")[-1]["run"] == id_
        assert not (ctx.work / "asked").exists()
        assert not ran.exists() or len(ran.read_text().split()) == 1
        assert gone(ran)
        with working(ctx, coder, script(say("again")), session="s") as client:
            assert client.until("done", status="ok")


def test_a_model_that_never_stops(python: Path) -> None:
    # "a model that never stops": the limit of time ends it
    with mounted(python, []) as ctx:
        ctx.umount()
        (ctx.config / "config.toml").write_text("[agent]\nsecs = 0.5\n")
        ctx.mount()
        with agent(ctx, "coder") as coder:
            answer = run(ctx, coder, script([say("x"), {"hang": True}]))
            assert (answer.status, answer.code) == (1, "ETIMEDOUT")
            assert "secs" in answer.message


def test_a_host_that_dies_in_a_call(ctx: Ctx, coder: str) -> None:
    # abi.md 4.30: a crash is EPROTO; here the model hears of it, and goes on
    task = script(call("shell.exec", cmd="kill -9 $PPID; sleep 9"), say("it died"))
    with working(ctx, coder, task, session="dies") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        frames = client.until("done", status="ok")
    (told,) = results(frames)
    assert told["is_error"]
    assert "EPROTO" in told["output"]
    assert text(frames) == "it died"


def test_agents_that_go(python: Path) -> None:
    with mounted(python, []) as ctx:
        with agent(ctx, "gone") as path, talk(ctx, f"{path}.sock") as client:
            client.send(script([say("x"), {"hang": True}]), session="s")
            client.until("delta")
        assert not os.path.lexists(ctx.root / "agent/gone")
        assert not os.path.lexists(ctx.root / "agent/gone.sock")
        assert (ctx.root / "home/0/agent/gone.d/session/s/events.jsonl").exists()


def test_helpers_of_helpers_have_an_end(python: Path) -> None:
    # "a depth limit": of runs in runs, as for every other (config.toml, limits.depth)
    with mounted(python, []) as ctx:
        ctx.umount()
        (ctx.config / "config.toml").write_text("[limits]\ndepth = 2\n")
        (ctx.config / "policy.toml").write_text('mode = "open"\n')
        ctx.mount()
        with agent(ctx, "deep", "agent.run") as path:
            policy = (ctx.root / f"{path}.d/policy").read_text()
            write(ctx, path, "policy", policy + "allow deep_t agent:deep start\n")
            task = script(say("the bottom"))
            for _ in range(3):
                task = script(call("agent.run", name="deep", task=task), say("deeper"))
            answer = run(ctx, path, task)
            assert answer.output == "deeper"
            log = [json.loads(line) for line in (ctx.root / f"{path}.d/log").read_text().splitlines()]
            assert [one["status"] for one in log] == ["ok", "ok", "ok"]
