"""An agent that is changed, removed or made again during its run: the run stays within the rights that its
agent had when the run began, and within its rights now. Quotes without a source are from docs/agents.md."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mounted import agents
from tests.mounted.agents import agent, call, decisions, results, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import Frame, Talk, talk, text

ASKED = call("shell.exec", cmd="true")  # the run waits at this call, so that a test can change its agent

ctx = agents.ctx


def control(ctx: Ctx, path: str, name: str) -> str:
    return (ctx.root / f"{path}.d" / name).read_text()


class Waiting(NamedTuple):
    """A run that waits for an approval."""

    client: Talk
    asked: Frame

    def allow(self, decision: str = "allow_once") -> None:
        self.client.ask("approve", run=self.asked["run"], call=self.asked["call"], decision=decision)

    def go_on(self, **done: str) -> list[Frame]:
        self.allow()
        return self.client.until("done", **done)


@contextlib.contextmanager
def waiting(ctx: Ctx, path: str, *then: dict[str, Any], session: str = "s") -> Iterator[Waiting]:
    """Start a run that waits for an approval, and does `then` once it is approved."""
    with working(ctx, path, script(ASKED, *then, say("done")), session=session) as client:
        yield Waiting(client, client.until("approval")[-1])


READ = call("fs.read", path="README.md")


def test_a_line_that_is_added_counts_for_the_next_run(ctx: Ctx) -> None:
    # "What was added counts for the next run"
    with agent(ctx, "gains", "shell.exec", "fs.read") as path:
        policy = control(ctx, path, "policy")
        write(ctx, path, "policy", policy.replace("allow gains_t tool:fs.read execute\n", ""))
        with waiting(ctx, path, READ) as run:
            write(ctx, path, "policy", policy)
            frames = run.go_on(status="ok")
            assert [one["decision"] for one in decisions(frames)][-1:] == ["deny"]
            assert results(frames)[-1]["is_error"]
            assert "counts from the next run on" in results(frames)[-1]["output"]
            run.client.send(script(READ, say("x")), session="s")
            (told,) = results(run.client.until("done", status="ok"))
            assert told["output"] == "hello world\n"


def test_a_program_of_its_gains_nothing_either(ctx: Ctx) -> None:
    # abi.md 7.3: "what a run began without is not added to it", for programs that its calls run
    run_it = f"{ctx.root}/tool/text.word_count 'a b' 2>&1"
    with agent(ctx, "nests", "shell.exec") as path:
        task = script(call("shell.exec", cmd=run_it), say("x"))
        policy = control(ctx, path, "policy")
        with working(ctx, path, task, session="s") as client:
            run = Waiting(client, client.until("approval")[-1])
            write(ctx, path, "policy", f"{policy}allow nests_t tool:text.word_count execute\n")
            *_, before = results(run.go_on(status="ok"))
            client.send(task, session="s")
            run = Waiting(client, client.until("approval")[-1])
            *_, after = results(run.go_on(status="ok"))
    assert "counts from the next run on" in before["output"]
    assert '"status":"ok"' in after["output"]


def test_tools_and_model_are_those_with_which_it_began(ctx: Ctx) -> None:
    # "Its tools, its model, ... are those with which it began"
    with agent(ctx, "swaps", "shell.exec", "fs.read") as path:
        with waiting(ctx, path, READ, call("fs.list", path=".")) as run:
            write(ctx, path, "tools", "shell.exec\nfs.list\n")
            policy = control(ctx, path, "policy")
            more = "allow swaps_t tool:fs.list execute\nallow swaps_t model:debug/echo use\n"
            write(ctx, path, "policy", policy + more)
            write(ctx, path, "model", "debug/echo\n")
            frames = run.go_on(status="ok")
        _, read, listed = results(frames)
        assert (read["is_error"], read["output"]) == (False, "hello world\n")
        assert 'There is no tool "fs.list"' in listed["output"]
        assert text(frames) == "done"
        with working(ctx, path, "hello", session="s") as client:
            assert text(client.until("done", status="ok")) == "hello"


def test_a_model_that_is_taken_away_is_asked_no_more(ctx: Ctx) -> None:
    with agent(ctx, "mute", "shell.exec") as path, waiting(ctx, path) as run:
        policy = control(ctx, path, "policy")
        write(ctx, path, "policy", policy.replace("allow mute_t model:debug/script use\n", ""))
        assert run.go_on(status="error")[-1]["code"] == "EACCES"  # "what was taken away is gone at once"


def test_what_it_shows_and_who_is_asked(ctx: Ctx) -> None:
    # "Its tools, ... its mount table ... are those with which it began"; asking less is like a new line
    secret = ctx.base / "secret"
    secret.write_text("secret")
    peek = call("shell.exec", cmd=f"cat {secret} 2>&1")
    with (
        agent(ctx, "peeks", "shell.exec", "fs.read", approval="ask") as path,
        waiting(ctx, path, peek, READ) as run,
    ):
        write(ctx, path, "mount", f"/\t/\tro\t-\n{ctx.work}\t{ctx.work}\tro\t-\n")
        write(ctx, path, "approval", "auto\n")
        told = []
        for _ in range(2):
            run.allow()
            frames = run.client.until("approval")
            told += results(frames)
            run = run._replace(asked=frames[-1])
        told += results(run.go_on(status="ok"))
    assert [one["is_error"] for one in told] == [False, True, False]
    assert "Permission denied" in told[1]["output"]


@pytest.mark.parametrize("again", [False, True])
def test_an_agent_that_is_removed_in_mid_run(ctx: Ctx, again: bool) -> None:
    # "An agent that was removed may nothing more, and one that was made again is another"
    with contextlib.ExitStack() as made:
        first = contextlib.ExitStack()
        path = first.enter_context(agent(ctx, "short", "shell.exec", "fs.write"))
        write = call("fs.write", path="written", content="x")
        with waiting(ctx, path, write, session=f"s{again}") as run:
            first.close()
            if again:
                made.enter_context(agent(ctx, "short", "shell.exec", "fs.write"))
            frames = run.go_on(status="error")
    assert frames[-1]["code"] == "EACCES"
    assert ("created again" if again else "not an agent (any more)") in str(frames)
    assert not (ctx.work / "written").exists()


def test_what_was_allowed_for_a_session_is_not_allowed_to_the_next_of_its_name(ctx: Ctx) -> None:
    with agent(ctx, "heir", "shell.exec") as path, waiting(ctx, path) as run:
        run.allow("allow_session")
        run.client.until("done", status="ok")
    with agent(ctx, "heir", "shell.exec") as path, waiting(ctx, path) as run:  # the call is asked about again
        assert results(run.go_on(status="ok"))


def test_one_of_a_home_that_is_made_again(ctx: Ctx) -> None:
    file = ctx.root / "home/0/agent/mine"
    ctx.ctx("agent", "new", "mine", "--home", "--model", "debug/script", "--tools", "shell.exec")
    policy = (ctx.root / "home/0/agent/mine.d/policy").read_text()
    task = script(ASKED, call("shell.exec", cmd="touch mine-ran"), say("x"))
    with talk(ctx, "home/0/agent/mine.sock") as client:
        client.send(task, session="s", cwd=str(ctx.work))
        run = Waiting(client, client.until("approval")[-1])
        file.unlink()
        file.touch()
        (ctx.root / "home/0/agent/mine.d/policy").write_text(policy)
        frames = run.go_on(status="error")
    file.unlink()
    assert "created again" in str(frames)
    assert not (ctx.work / "mine-ran").exists()


def test_a_helper_gains_nothing_by_what_its_starter_is_given(python: Path) -> None:
    # "The helper may what both policies allow", and "nothing that is done to an agent gives its run more"
    wait = call("shell.exec", cmd="touch waits; while [ ! -e go ]; do sleep 0.05; done")
    with (
        mounted(python, []) as ctx,
        agent(ctx, "boss", "agent.run", "shell.exec") as boss,
        agent(ctx, "helper", "shell.exec", "fs.read"),
    ):
        (ctx.config / "policy.toml").write_text('mode = "open"\n')
        (ctx.work / "README.md").write_text("hello world\n")
        policy = control(ctx, boss, "policy") + "allow boss_t agent:helper start\n"
        write(ctx, boss, "policy", policy)
        asked = script(call("agent.run", name="helper", task=script(wait, READ, say("x"))), say("x"))
        log = ctx.root / "tool/fs.read.d/log"
        for allowed in (False, True):
            with working(ctx, boss, asked, session="s") as client:
                while not (ctx.work / "waits").exists():
                    assert client.is_alive()
                write(ctx, boss, "policy", f"{policy}allow boss_t tool:fs.read execute\n")
                (ctx.work / "go").touch()
                client.until("done", status="ok")
            assert bool(log.read_text()) is allowed
            for name in ("waits", "go"):
                (ctx.work / name).unlink()
