"""Agents on a real mount, with a model that answers as its task states: the loop, helpers and conversations.
Quotes without a source are from the issue that asked for agents."""

from __future__ import annotations

import json
import stat

import pytest

from tests.mounted import agents
from tests.mounted.agents import agent, call, results, run, say, script, working, write
from tests.mounted.ctx_mount import Ctx
from tests.mounted.talking import history, is_refused, one_run, talk, text
from tests.waiting import until

ctx, coder = agents.ctx, agents.coder


# The loop.


def test_what_a_run_says(ctx: Ctx, coder: str) -> None:
    # "messages -> model with the visible tools' schemas -> tool_call -> policy -> ... -> until done"
    answer = run(
        ctx, coder, script([say("I look."), call("fs.read", path="README.md")], say("It says hello."))
    )
    assert answer.status == 0, answer
    begin, end = ["start", "delta", "message"], ["delta", "message", "usage", "done"]
    assert answer.types == [*begin, "tool_call", "observer", "tool_result", *end]
    assert answer.frames[0]["agent"] == "coder"
    asked = answer.frames[3]
    assert (asked["name"], asked["input"]) == ("fs.read", {"path": "README.md"})
    told = answer.frames[5]
    assert (told["call"], told["output"], told["is_error"]) == (asked["call"], "hello world\n", False)
    assert answer.frames[7]["content"] == [{"type": "text", "text": "It says hello."}]


@pytest.mark.parametrize("form", ["argv", "words", "stdin", "task", "task on stdin"])
def test_every_way_to_give_a_task(ctx: Ctx, coder: str, form: str) -> None:
    # abi.md 4.12: `/ctx/agent/coder "fix this project"`, `echo '{"task":"fix tests"}' | /ctx/agent/coder`
    task, path = '[{"delta":"done it"}]', str(ctx.root / coder)
    words = {"argv": [task], "words": ['[{"delta":"done', 'it"}]'], "task": [json.dumps({"task": task})]}
    piped = {"stdin": task, "task on stdin": json.dumps({"task": task})}
    done = ctx.run([path, *words.get(form, [])], input=piped.get(form))
    assert done.returncode == 0, done.stdout
    assert text([json.loads(line) for line in done.stdout.splitlines()]) == "done it"


def test_calls_of_one_answer_run_side_by_side(ctx: Ctx, coder: str) -> None:
    # "parallel tool calls run side by side": each call waits for a file that the other call makes
    meet = "touch {0}; until [ -e {1} ]; do sleep 0.01; done; echo {0}"
    calls = [
        call("shell.exec", "one", cmd=meet.format("a1", "a2")),
        call("shell.exec", "two", cmd=meet.format("a2", "a1")),
    ]
    with working(ctx, coder, script(calls, say("met")), session="side") as client:
        for _ in calls:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        told = results(client.until("done", status="ok"))
    assert sorted(frame["output"] for frame in told) == ["a1\n", "a2\n"]


def test_fifty_steps(ctx: Ctx, coder: str) -> None:
    parts = [call("text.word_count", text=f"word {number}") for number in range(49)]
    answer = run(ctx, coder, script(*parts, say("counted")))
    assert (answer.status, answer.output) == (0, "counted")
    assert len(results(answer.frames)) == 49
    assert len({frame["call"] for frame in results(answer.frames)}) == 49


def test_the_limit_of_steps(ctx: Ctx, coder: str) -> None:
    # "limits on steps, tokens, time and repeated identical calls, each with its own clear end"
    write(ctx, coder, "env", "CTX_AGENT_STEPS=3\n")
    answer = run(ctx, coder, script(*[call("text.word_count", text=str(n)) for n in range(9)]))
    write(ctx, coder, "env", "CTX_AGENT_STEPS=64\n")
    assert (answer.status, answer.code) == (1, "E2BIG")
    assert "3 steps" in answer.message
    assert len(results(answer.frames)) == 3


def test_a_model_that_repeats_itself(ctx: Ctx, coder: str) -> None:
    answer = run(ctx, coder, script(*[call("text.word_count", text="x")] * 9))
    assert (answer.code, len(results(answer.frames))) == ("ELOOP", 3)
    assert answer.types[-3:] == ["usage", "error", "done"]


def test_a_failed_call_is_told_to_the_model(ctx: Ctx, coder: str) -> None:
    answer = run(ctx, coder, script(call("fs.read", path="nothing.txt"), say("It is not there.")))
    (told,) = results(answer.frames)
    assert (told["is_error"], answer.status) == (True, 0)
    assert "ENOENT" in told["output"]
    assert "nothing.txt" in told["output"]


def test_a_malformed_call_is_answered_with_what_was_wrong(ctx: Ctx, coder: str) -> None:
    # "a malformed call is answered to the model with what was wrong"
    answer = run(ctx, coder, script(call("fs.read", path=7), call("fs.reed", path="x"), say("I see.")))
    wrong, unknown = results(answer.frames)
    assert "path: expected string, got number" in wrong["output"]
    assert 'There is no tool "fs.reed"' in unknown["output"]
    assert "fs.read" in unknown["output"]
    assert wrong["is_error"]
    assert unknown["is_error"]
    assert answer.status == 0


def test_the_models_error_ends_the_run(ctx: Ctx, coder: str) -> None:
    answer = run(ctx, coder, script({"error": {"code": "EHOSTDOWN", "message": "it is away"}}))
    assert (answer.status, answer.code, answer.message) == (69, "EHOSTDOWN", "it is away")


def test_tokens_are_counted_once_for_all_answers(ctx: Ctx, coder: str) -> None:
    used = {"usage": {"input_tokens": 10, "output_tokens": 2}}
    answer = run(ctx, coder, script([call("text.word_count", text="a"), used], [say("b"), used]))
    assert [frame for frame in answer.frames if frame["type"] == "usage"] == [
        {"type": "usage", "run": answer.frames[0]["run"], "input_tokens": 20, "output_tokens": 4}
    ]
    log = (ctx.root / f"{coder}.d/log").read_text().splitlines()
    assert json.loads(log[-1])["input_tokens"] == 20


def test_long_output_is_bounded(ctx: Ctx, coder: str) -> None:
    # "tool output is bounded, marked as untrusted"
    (ctx.work / "long.txt").write_text("".join(f"line {number}\n" for number in range(20_000)))
    answer = run(ctx, coder, script(call("fs.read", path="long.txt", limit=20_000), say("long")))
    (told,) = results(answer.frames)
    assert len(told["output"]) < 20_000
    assert "bytes left out" in told["output"]
    assert told["output"].startswith("line 0\n")
    assert "line 19999" in told["output"]


# Helpers.


def test_a_helper(ctx: Ctx) -> None:
    # "Child agents as far as a tool `agent.run {name, task}` with attenuated policy and a depth limit"
    with (
        agent(ctx, "boss", "agent.run", "fs.read", "shell.exec") as boss,
        agent(ctx, "helper", "fs.*") as helper,
    ):
        policy = (ctx.root / f"{boss}.d/policy").read_text()
        write(ctx, boss, "policy", policy + "allow boss_t agent:helper start\n")
        inner = script(
            [call("fs.read", path="README.md"), call("fs.list", path=".")],
            say("I read it, and may not list."),
        )
        task = script(call("agent.run", name="helper", task=inner), say("thanks"))
        with working(ctx, boss, task, session="boss") as client:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
            (told,) = results(client.until("done", status="ok"))
        # agents.md: "A call that it was denied stands below its report"
        denied = "[denied to the helper: fs.list: agent/boss may not execute tool:fs.list: "
        assert told["output"].startswith(f"I read it, and may not list.\n{denied}")
        log = json.loads((ctx.root / "tool/fs.read.d/log").read_text().splitlines()[-1])
        assert log["status"] == "ok"
        helper_log = json.loads((ctx.root / f"{helper}.d/log").read_text().splitlines()[-1])
        assert helper_log["status"] == "ok"


def test_a_helper_that_the_policy_does_not_name(ctx: Ctx) -> None:
    with agent(ctx, "boss2", "agent.run") as boss, agent(ctx, "helper2", "fs.read"):
        task = script(call("agent.run", name="helper2", task="x"), say("well"))
        with working(ctx, boss, task, session="boss") as client:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
            (told,) = results(client.until("done", status="ok"))
    assert told["is_error"]
    assert "allow boss2_t agent:helper2 start" in told["output"]


# Conversations.


def test_a_task_from_beginning_to_end(ctx: Ctx, coder: str) -> None:
    # "read a file, replace a line, run a command, report"
    (ctx.work / "config.ini").write_text("debug = on\ncolour = red\n")
    task = script(
        call("fs.read", path="config.ini"),
        call("fs.replace", path="config.ini", old="debug = on", new="debug = off"),
        call("shell.exec", cmd="grep -c off config.ini"),
        say("debug is off now."),
    )
    with working(ctx, coder, task, session="whole") as client:
        frames = []
        for _ in range(2):
            frames += client.until("approval")
            client.ask("approve", run=frames[-1]["run"], call=frames[-1]["call"], decision="allow_once")
        frames += client.until("done", status="ok")
    one_run(frames)
    assert [frame["is_error"] for frame in results(frames)] == [False] * 3
    assert results(frames)[-1]["output"] == "1\n"
    assert (ctx.work / "config.ini").read_text() == "debug = off\ncolour = red\n"
    assert frames[-2]["type"] == "usage"
    logged = history(ctx, "whole", f"{coder}.sock")
    assert [frame["type"] for frame in logged if frame["type"] != "delta"].count("tool_result") == 3


def test_what_was_said_before_is_known(ctx: Ctx) -> None:
    with agent(ctx, "echoing", "fs.read", model="debug/echo") as path, talk(ctx, f"{path}.sock") as client:
        client.send("one", session="memory")
        assert text(client.until("done", status="ok")) == "one"
        client.send("two", session="memory")
        assert text(client.until("done", status="ok")) == "two"


def test_the_agents_cwd_is_the_default(ctx: Ctx, coder: str) -> None:
    # abi.md 5.22
    write(ctx, coder, "cwd", f"{ctx.work}\n")
    task = script(call("fs.read", path="README.md"), say("x"))
    with talk(ctx, f"{coder}.sock") as client:
        client.send(task, session="default-cwd")
        (told,) = results(client.until("done", status="ok"))
        assert told["output"] == "hello world\n"
    write(ctx, coder, "cwd", "/\n")
    with talk(ctx, f"{coder}.sock") as client:
        client.send(task, session="no-cwd")
        (told,) = results(client.until("done", status="ok"))
        assert told["is_error"]
        client.send(task, session="its-own", cwd=str(ctx.work))
        client.until("done", status="ok")
        client.send(task, session="its-own")
        (told,) = results(client.until("done", status="ok"))
        assert told["output"] == "hello world\n"


def test_an_agent_that_is_set_up_wrong_is_refused(ctx: Ctx) -> None:
    # abi.md 5.6
    with agent(ctx, "wrong", "fs.read") as path:
        write(ctx, path, "model", "nobody/nothing\n")
        status = ctx.root / f"{path}.d/status"
        until(lambda: status.read_text().startswith("broken: there is no model nobody/nothing"))
        assert stat.S_ISSOCK((ctx.root / f"{path}.sock").stat().st_mode)
        until(lambda: is_refused(ctx, f"{path}.sock"))  # the refusal begins right after the status changes
        answer = run(ctx, path, script(say("x")))
        assert (answer.status, answer.code) == (69, "EHOSTDOWN")
        write(ctx, path, "model", "debug/script\n")
        until(lambda: status.read_text() == "ready\n")
        assert run(ctx, path, script(say("x"))).output == "x"
        until(lambda: not is_refused(ctx, f"{path}.sock"))
        with working(ctx, path, script(say("y"))) as client:
            assert text(client.until("done", status="ok")) == "y"
