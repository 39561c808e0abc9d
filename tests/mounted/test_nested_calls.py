"""Tools that an agent's shell runs are decided, asked about, limited and logged as if the model had called
them. The session shows them below the call of the shell. The quotes are from issue 16."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.mounted import agents
from tests.mounted.acting import acting
from tests.mounted.agents import agent, call, decisions, results, say, script, working, write
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.talking import Frame, Talk, history
from tests.mounted.test_secrets import declare, keep
from tests.shell import provider_server as play
from tests.shell.provider_server import Move, Provider, Request
from tests.waiting import until

ctx = agents.ctx
TOOLS = ("shell.exec", "fs.read", "fs.write", "text.word_count")


@contextlib.contextmanager
def shell(ctx: Ctx, path: str, *commands: str, uid: int | None = None, **fields: Any) -> Iterator[Talk]:
    """Yields a conversation whose model runs each command in a shell of its own, which the user allows."""
    task = script(
        [call("shell.exec", f"c{number}", cmd=cmd) for number, cmd in enumerate(commands)], say("x")
    )
    with working(ctx, path, task, uid=uid, **fields) as client:
        for _ in commands:
            answer(client, client.until("approval", name="shell.exec")[-1], "allow_once")
        yield client


def answer(client: Talk, asked: Frame, decision: str, **more: object) -> None:
    client.ask("approve", run=asked["run"], call=asked["call"], decision=decision, **more)


def below(frames: list[Frame], parent: str) -> list[Frame]:
    return [one for one in frames if one["type"] == "tool_call" and one.get("parent") == parent]


def test_it_is_shown_below_the_shell_call_that_made_it(ctx: Ctx) -> None:
    # abi.md 7.7: "is shown in the session below the shell call that made it"; also of another user's
    with agent(ctx, "shower", *TOOLS) as path:
        for uid in (None, NOBODY):
            command = "$CTX_ROOT/tool/text.word_count 'a b c' | cut -c1-100000 >/dev/null; echo shown"
            with shell(ctx, path, command, uid=uid, session="below") as client:
                frames = client.until("done", status="ok")
            (made,) = below(frames, "c0")
            assert (made["name"], made["input"]) == ("text.word_count", {"text": "a b c"})
            nested, parent = results(frames)
            assert (nested["call"], nested["output"], nested["is_error"]) == (made["call"], "3 words", False)
            assert parent["output"] == "shown\n"
            assert decisions(frames)[-1]["rule"].startswith(f"{path}.d/policy:")
            assert below(history(ctx, "below", f"{path}.sock", uid=uid), "c0") == [made]
    who = NOBODY
    told = (ctx.root / f"home/{who}/tool/text.word_count.d/log").read_text().splitlines()
    assert '"agent"' in told[-1]


class Shelled(Provider):
    """A model that calls the shell, and answers "well" when it has the result."""

    async def moves(self, request: Request) -> Sequence[Move]:
        if "tool_output" in str(request.body):
            return play.chat('{"answer": "well"}')
        cmd = "echo seen; $CTX_ROOT/tool/fs.read README.md >/dev/null"
        return play.chat(json.dumps({"tool": "shell.exec", "input": {"cmd": cmd}}))


def test_what_is_not_printed_does_not_reach_the_model(python: Path) -> None:
    with acting(Shelled([])) as provider, mounted(python, []) as ctx:
        ctx.umount()
        declare(ctx, "p", provider.base_url, ["m"])
        keep(ctx, "p")
        ctx.mount()
        (ctx.work / "README.md").write_text("unprinted\n")
        with agent(ctx, "silent", *TOOLS, model="p/m") as path:
            for _ in range(2):  # the next run does not show it either
                with working(ctx, path, "go", session="silent") as client:
                    answer(client, client.until("approval")[-1], "allow_once")
                    frames = client.until("done", status="ok")
                assert [one["output"] for one in results(frames)] == ["unprinted\n", "seen\n"]
    asked = [str(request.body) for request in provider.requests]
    assert any("seen" in body for body in asked)
    assert not any("unprinted" in body for body in asked)


def test_each_shell_has_its_own_though_they_run_side_by_side(ctx: Ctx) -> None:
    command = 'touch at{0}; until [ -e at{1} ]; do :; done; env -i $CTX_ROOT/tool/text.word_count "of {0}"'
    commands = [command.format(number, 1 - number) for number in range(2)]
    with agent(ctx, "paired", *TOOLS) as path, shell(ctx, path, *commands) as client:
        frames = client.until("done", status="ok")
    for number in range(2):
        (made,) = below(frames, f"c{number}")
        assert made["input"] == {"text": f"of {number}"}


def test_a_shell_in_a_shell(ctx: Ctx) -> None:
    inner = "$CTX_ROOT/tool/text.word_count x"
    with (
        agent(ctx, "deep", *TOOLS) as path,
        shell(ctx, path, f"CTX_OUTPUT=text $CTX_ROOT/tool/shell.exec '{inner}'") as client,
    ):
        (asked,) = [one for one in client.until("approval", name="shell.exec") if one["type"] == "approval"]
        answer(client, asked, "allow_once")
        frames = client.until("done", status="ok")
    assert asked["call"] == "c0.1"
    assert [one["name"] for one in below(frames, "c0.1")] == ["text.word_count"]


def test_its_user_is_asked_and_may_edit_it(ctx: Ctx) -> None:
    # "approvals ... as if the model had made it"
    with agent(ctx, "asking", *TOOLS, approval="ask") as path:
        command = (
            "export CTX_OUTPUT=text; $CTX_ROOT/tool/text.word_count one; echo;"
            "$CTX_ROOT/tool/fs.read README.md; echo $?"
        )
        with shell(ctx, path, command) as client:
            asked = client.until("approval")[-1]
            assert (asked["name"], asked["input"]) == ("text.word_count", {"text": "one"})
            answer(client, asked, "allow_once", input={"text": "one two"})
            frames = client.until("approval")
            assert frames[-1]["name"] == "fs.read"
            answer(client, frames[-1], "deny")
            frames += client.until("done", status="ok")
    counted, denied, whole = results(frames)
    assert counted["output"] == "2 words"
    assert denied["is_error"]
    assert "the user did not allow it" in denied["output"]
    assert whole["output"].startswith("2 words\n")
    assert whole["output"].endswith("13\n")


def test_what_is_allowed_for_the_session_is_asked_about_once(ctx: Ctx) -> None:
    command = "for word in a b c; do CTX_OUTPUT=text $CTX_ROOT/tool/text.word_count $word; done"
    with agent(ctx, "once", *TOOLS, approval="ask") as path, shell(ctx, path, command) as client:
        answer(client, client.until("approval")[-1], "allow_session")
        frames = client.until("done", status="ok")
    assert "approval" not in {one["type"] for one in frames}
    assert results(frames)[-1]["output"] == "1 words" * 3


def test_denied_calls_of_programs_end_the_run_as_those_of_the_model(ctx: Ctx) -> None:
    # "each nested call meets policy, ..., limits"; the fourth is not even decided about
    with agent(ctx, "insisting", *TOOLS) as path:
        policy = ctx.text(f"{path}.d/policy").replace("allow insisting_t tool:fs.write execute\n", "")
        write(ctx, path, "policy", policy)
        command = "for number in 1 2 3 4; do $CTX_ROOT/tool/fs.write n$number x; done 2>&1"
        with shell(ctx, path, command) as client:
            frames = client.until("done")
    assert frames[-1]["code"] == "EACCES"
    assert [one["is_error"] for one in results(frames)] == [True] * 3 + [True]
    assert not list(ctx.work.glob("n?"))


def test_who_has_denied_enough_is_asked_no_more(ctx: Ctx) -> None:
    # abi.md 7.7: "denied ones count as the model's", also those that are made side by side
    command = "for number in 1 2 3 4 5 6; do $CTX_ROOT/tool/text.word_count $number & done; wait"
    with agent(ctx, "wearing", *TOOLS, approval="ask") as path, shell(ctx, path, command) as client:
        for _ in range(3):
            answer(client, client.until("approval")[-1], "deny")
        frames = client.until("done", code="EACCES")
    assert "approval" not in {one["type"] for one in frames}


def test_a_run_that_is_cancelled_takes_its_nested_calls_along(ctx: Ctx) -> None:
    with agent(ctx, "left", *TOOLS, approval="ask") as path:
        with shell(ctx, path, "$CTX_ROOT/tool/fs.read README.md", session="left") as client:
            asked = client.until("approval")[-1]
            client.ask("cancel", id=asked["run"])
            frames = client.until("done", status="cancelled")
            answer(client, asked, "allow_once")
            assert client.until("error")[-1]["code"]
        assert not results(frames) or results(frames)[0]["is_error"]
        ctx.at_rest()


def test_a_scratch_folder_stays_with_the_session_and_is_closed_to_others(ctx: Ctx) -> None:
    # "files in a scratch folder of the session"; abi.md 7.8
    with agent(ctx, "scratching", *TOOLS) as path:
        with shell(ctx, path, "echo mine >$TMPDIR/f; echo $TMPDIR", session="one") as client:
            place = results(client.until("done", status="ok"))[-1]["output"].strip()
        with shell(
            ctx, path, "cat $TMPDIR/f; $CTX_ROOT/tool/fs.read $TMPDIR/f | head -2", session="one"
        ) as client:
            kept = results(client.until("done", status="ok"))[-1]["output"]
        with shell(ctx, path, f"cat {place}/f; ls $TMPDIR; echo $TMPDIR", session="two") as client:
            other = results(client.until("done", status="ok"))[-1]["output"]
        with shell(ctx, path, f"cat {place}/f; echo theirs >$TMPDIR/f", uid=NOBODY, session="one") as client:
            others = results(client.until("done", status="ok"))[-1]["output"]
    assert kept.startswith("mine\n")
    assert "mine" not in other + others
    assert place not in other.splitlines()[-1]
    assert os.stat(place).st_mode & 0o777 == 0o700
    folders = ctx.state.with_name(f"{ctx.state.name}-kept") / "scratch"
    assert {entry.name for entry in folders.iterdir()} == {"0", str(NOBODY)}


def test_the_host_of_a_shell_ends_with_its_call(ctx: Ctx) -> None:
    # A process that the call leaves behind can make no more calls.
    with agent(ctx, "ending", *TOOLS) as path:
        command = "setsid sh -c 'sleep 1000' >/dev/null 2>&1 & echo $PPID"
        with shell(ctx, path, command) as client:
            host = int(results(client.until("done", status="ok"))[-1]["output"])
    until(lambda: os.path.exists(f"/proc/{host}"), lambda there: not there)


def test_so_does_that_of_a_shell_whose_run_is_cancelled(ctx: Ctx) -> None:
    marker = ctx.work / "host"
    with agent(ctx, "stopped", *TOOLS) as path:
        left = "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $PPID >host.new; mv host.new host"
        with working(ctx, path, script(call("shell.exec", cmd=f"{left}; sleep 1000"))) as client:
            asked = client.until("approval")[-1]
            answer(client, asked, "allow_once")
            until(marker.exists)
            client.ask("cancel", id=asked["run"])
            client.until("done", status="cancelled")
        host = int(marker.read_text())
        until(lambda: os.path.exists(f"/proc/{host}"), lambda there: not there)


def test_hostile_inputs_and_outputs_are_bounded_in_the_session(ctx: Ctx) -> None:
    command = (
        "head -c 100000 /dev/zero | tr '\\0' x | $CTX_ROOT/tool/text.word_count - >/dev/null;"
        "head -c 300000 /dev/zero | tr '\\0' x | $CTX_ROOT/tool/text.word_count -"
    )
    with agent(ctx, "bounded", *TOOLS) as path, shell(ctx, path, command) as client:
        frames = client.until("done", status="ok")
    (made,) = below(frames, "c0")
    assert len(json.dumps(made)) < 5000
    assert "at most 256 KiB" in results(frames)[-1]["output"]
