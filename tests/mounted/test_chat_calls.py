"""Calls as a person at a terminal sees them and decides about them, in tmux on a real mount."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.client import Conversation
from tests.mounted.agents import agent, call, say
from tests.mounted.agents import script as answers
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.screen import PROMPT, Screen, screen
from tests.mounted.test_chat import chat, environ, leave, script, was

ASKING = "[y]es [n]o [a]lways [e]dit:"
EDITING = "edit; Enter allows it so, Ctrl-C goes back:"
# The colours as tmux writes them.
GREEN, RED = (rf"\x1b\[{number}m(\x1b\[49m)?" for number in (32, 31))


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture
def shown(ctx: Ctx) -> Iterator[Screen]:
    with screen(environ(ctx), ctx.work, (100, 30)) as shown:
        yield shown


def asks(name: str, given: object, **more: object) -> dict[str, Any]:
    return {"approval": {"name": name, "input": given, "reason": "it must", **more}}


def decisions(ctx: Ctx, session: str, object_: str = "debug/script") -> list[dict[str, Any]]:
    lines = ctx.ctx("resume", object_, "--session", session).stdout.splitlines()
    frames = [json.loads(line) for line in lines]
    return [
        json.loads(frame["content"])
        for frame in frames
        if frame["type"] == "observer" and frame["source"] == "approval"
    ]


def test_calls_and_results(shown: Screen) -> None:
    # issue: "the terminal session shows tool calls"
    chat(shown, "debug/script", "--session", "calls")
    lines = "".join(f"line {number}\n" for number in range(50))
    shown.type(
        script(
            {
                "tool_call": {
                    "name": "fs.read",
                    "call": "a",
                    "input": {"path": "README.md", "wild": "\x1b[2J"},
                }
            },
            {"tool_result": {"name": "fs.read", "call": "a", "output": lines}},
            {"tool_call": {"name": "t", "call": "b"}},
            {"tool_result": {"name": "t", "call": "b", "output": "no such \x9b2J", "is_error": True}},
        )
    )
    shown.wait('\u25b8 fs.read path=README.md wild="\\u001b[2J"\n  line 0\n')
    shown.wait("  line 7\n  ... 42 more lines\n")
    shown.wait("\u25b8 t\n  t: no such \\x9b2J\n")
    assert re.search(f"{RED}  t: no such", shown.coloured)
    leave(shown)


def test_a_change_is_shown_as_a_diff_and_edited(shown: Screen, ctx: Ctx) -> None:
    # issue: "diffs of writes and approvals as they happen; [y]es once, ..., [e]dit"
    file = ctx.work / "numbers"
    file.write_text("".join(f"{number}\n" for number in range(1, 10)))
    chat(shown, "debug/script", "--session", "edited")
    given = {"path": str(file), "content": file.read_text().replace("5\n", "five\n")}
    shown.type(script(asks("fs.write", given, effects=["write_file"])))
    shown.wait("  @@ -2,7 +2,7 @@\n   2\n   3\n   4\n  -5\n  +five\n   6\n   7\n   8\n")
    shown.wait(f"It must.\nAllow fs.write on {file}?")
    shown.wait_last(ASKING)
    assert re.search(rf"{GREEN}  \+five", shown.coloured)
    assert re.search(f"{RED}  -5", shown.coloured)
    shown.type("e")
    shown.wait(f"{EDITING} {{")
    shown.keys("C-c")  # back to the question
    shown.wait_gone(EDITING)
    shown.wait_last(ASKING)
    shown.type("e")
    shown.wait(f"{EDITING} {{")
    shown.keys("C-u", "x", "Enter")
    shown.wait("what you wrote: is not one JSON value")
    shown.wait(EDITING)  # the input stays, so that the person can correct it
    shown.keys(*["BSpace"] * 250)
    shown.type('{"path": "elsewhere"}')
    shown.wait("allowed, as you changed it: fs.write")
    shown.wait('allow_once {"path":"elsewhere"}')
    (decided,) = decisions(ctx, "edited")
    assert decided["input"] == {"path": "elsewhere"}
    assert decided["reason"].endswith("allowed it once, with another input")
    shown.wait_last(">")
    leave(shown)


def test_a_large_change_is_shown_before_it_is_allowed(shown: Screen, ctx: Ctx) -> None:
    # chat.md: "`y` shows the rest of a call before it is allowed"
    chat(shown, "debug/script", "--session", "large")
    given = {"path": "/nowhere/x", "content": "".join(f"line {number}\n" for number in range(200))}
    shown.type(script(asks("fs.write", given)))
    shown.wait("  +line 20\n  ... 179 more lines\nIt must.\nAllow fs.write on /nowhere/x")
    shown.wait("(not all of it is shown: y shows more first)")
    shown.wait("there is no such file yet")
    shown.wait_last(ASKING)
    shown.type("y")
    shown.wait("  +line 199\nAllow fs.write?")
    shown.wait_last(ASKING)
    assert not decisions(ctx, "large")
    shown.type("y")
    shown.wait("allowed: fs.write")
    shown.wait_last(">")
    assert [each["decision"] for each in decisions(ctx, "large")] == ["allow_once"]
    shown.type(script(asks("fs.write", given)))
    shown.wait("more first)")
    shown.wait_last(ASKING)
    shown.type("n")
    shown.wait("denied: fs.write")
    shown.wait_last(">")
    leave(shown)


def test_ctrl_c_denies_and_cancels(shown: Screen, ctx: Ctx) -> None:
    # chat.md: "Ctrl-C at the question denies it and cancels the run"
    chat(shown, "debug/script", "--session", "stopped")
    command = {"cmd": "rm -r x\n  # \u202etwo"}
    shown.type(script(asks("shell.exec", command, effects=["run_process"]), {"hang": True}))
    shown.wait("\u25b8 shell.exec\n  rm -r x\n    # \\u202etwo\nIt must.\nAllow shell.exec?")
    shown.keys("C-c")
    shown.wait("\ncancelled\n")
    shown.wait_last(">")
    assert [decided["decision"] for decided in decisions(ctx, "stopped")] == ["deny"]
    leave(shown)


def test_questions_queue_up(shown: Screen, ctx: Ctx) -> None:
    # chat.md: "Several questions are asked one after the other"
    with agent(ctx, "two", "shell.exec") as path:
        chat(shown, path, "--session", "queue")
        parts = [call("shell.exec", "one", cmd="echo 1 > one"), call("shell.exec", "two", cmd="echo 2 > two")]
        shown.type(answers(parts, say("both")))
        shown.wait("Allow shell.exec")
        shown.wait_last(ASKING)
        shown.type("y")
        shown.wait("Allow shell.exec", 2)
        shown.wait_last(ASKING)
        shown.type("n")
        shown.wait("\nboth\n")
        assert (ctx.work / "one").exists() != (ctx.work / "two").exists()
        shown.wait_last(">")
        leave(shown)


def test_an_agents_change_in_its_directory(shown: Screen, ctx: Ctx) -> None:
    # issue: "default table shows the caller's cwd": a path is taken from there, here as in the tool
    (ctx.work / "relative").write_text("old\n")
    with agent(ctx, "writer", "fs.*", approval="ask") as path:
        chat(shown, path, "--session", "cwd")
        change = call("fs.replace", path="relative", old="old", new="new")
        shown.type(answers([change], [change], say("done")))
        shown.wait("  @@ -1 +1 @@\n  -old\n  +new\nThis changes files, so you are asked.\n")
        shown.wait("Allow fs.replace on relative?")
        shown.wait_last(ASKING)
        shown.type("always")
        shown.wait("allowed for this session: fs.replace")
        shown.wait("\ndone\n")
        assert (ctx.work / "relative").read_text() == "new\n"
        assert shown.text.count("Allow") == 1
        shown.wait_last(">")
        leave(shown)


def test_a_word_that_is_no_answer_goes(shown: Screen, ctx: Ctx) -> None:
    # issue: "a refused answer at an approval is dropped"
    with agent(ctx, "doubted", "shell.exec") as path:
        chat(shown, path, "--session", "dropped")
        parts = [[call("shell.exec", name, cmd="true")] for name in ("one", "two")]
        shown.type(answers(*parts, say("both")))
        shown.wait("This runs a program, so you are asked.\nAllow shell.exec?")
        shown.wait_last(ASKING)
        shown.type("maybe")
        shown.wait("answer y (yes, this once)")
        shown.wait_last(ASKING)
        shown.type("y")
        shown.wait("Allow shell.exec?", 2)
        shown.wait_last(ASKING)
        shown.type("y")
        shown.wait("\nboth\n")
        shown.wait_last(">")
        leave(shown)


def test_a_question_that_was_decided_elsewhere_goes(shown: Screen, ctx: Ctx) -> None:
    # protocol.md: "Such a frame also says that the question is settled, whoever was asked"
    chat(shown, "debug/script", "--session", "elsewhere")
    shown.type(script(asks("t", {}, call="c"), {"delta": " was said"}))
    shown.wait_last(ASKING)
    shown.keys("e", "Enter")
    shown.wait(EDITING)
    shown.keys("y")
    (start, *_) = ctx.ctx("resume", "debug/script", "--session", "elsewhere").stdout.splitlines()
    with Conversation(str(ctx.root / "model/debug/script")) as other:
        other.approve(json.loads(start)["run"], "c", "allow_once")
    shown.wait("allow_once was said")
    shown.wait("allowed: t (uid ")
    shown.wait_last(">")
    leave(shown)


def test_a_question_that_nobody_answers_in_time(python: Path) -> None:
    # config.md: "Seconds that an agent waits for an approval; then it is denied"
    with (
        mounted(python, [], config="[agent]\napproval_secs = 0.5\n") as ctx,
        screen(environ(ctx), ctx.work) as shown,
    ):
        chat(shown, "debug/script", "--session", "late")
        shown.type(script(asks("t", {})))
        shown.wait("denied: t (no answer came within 0.5 s)")
        shown.wait_last(">")
        leave(shown)


def test_a_terminal_that_can_do_nothing_asks_by_lines(shown: Screen) -> None:
    # chat.md: "With `TERM=dumb` the chat reads and prints plain lines, and asks as `ctx send` does"
    chat(shown, "debug/script", "--session", "dumb", before="TERM=dumb")
    shown.type(script(asks("t", {"b": 1})))
    shown.wait("It must.\nAllow t with b=1?\n")
    shown.wait_last("y (yes), n (no) or a (always):")
    shown.type("e")
    shown.wait("calls are edited in ctx chat, unless TERM is dumb; answer y, n or a")
    shown.type("yes")
    shown.wait("\nallow_once\n")
    shown.wait_last(">")
    shown.type(script({"tool_call": {"name": "t", "input": {"a": 1}}}))
    shown.wait("\ncall: t a=1\n")
    shown.wait_last(">")
    shown.type("/quit")
    shown.wait_last(PROMPT.strip())
    was(shown, 0)


def test_calls_without_utf8(shown: Screen) -> None:
    # chat.md: "with `TERM=dumb` or a locale without that sign"
    chat(shown, "debug/script", "--scope", "temp", before="LC_ALL=C PYTHONUTF8=0")
    shown.type(script({"tool_call": {"name": "t", "input": {"a": 1}}}, {"progress": "half"}))
    shown.wait("\ncall: t a=1\n- half\n")
    shown.wait_last(">")
    leave(shown)


def test_send_asks_on_a_terminal(shown: Screen) -> None:
    # chat.md: "Calls that ask for approval are asked about on a terminal"
    steps = script(asks("shell.exec", {"cmd": "ls -l" + " " * 400 + "; rm -r x"}), asks("t", {}))
    shown.type(f"ctx send debug/script --scope temp --output jsonl '{steps}' > out")
    shown.wait("It must.\nAllow shell.exec? (not all of it is shown: y shows more first)\n")
    shown.wait_last("y (yes), n (no) or a (always):")
    shown.type("perhaps")
    shown.wait("answer y (yes, this once)")
    assert "rm -r x" not in shown.text.rpartition("Allow")[0].rpartition("shell.exec\n")[2]
    shown.type("y")
    shown.wait("; rm -r x\nAllow shell.exec?\n")  # the part that was cut is shown before the call is allowed
    shown.wait_last("y (yes), n (no) or a (always):")
    shown.type("y")
    shown.wait("It must.\nAllow t?\n")
    shown.wait_last("y (yes), n (no) or a (always):")
    shown.keys("C-c")
    shown.wait_last(PROMPT.strip())
    was(shown, 130)
    # the decision; a message may follow, as the denial or the cancel may be first
    shown.type("echo told=$(grep -q allow_once out && echo yes).")
    shown.wait("told=yes.")
