"""`ctx ask` on a real mount: the answers, the kept files, and the screen of a person at a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.screen import PROMPT, screen
from tests.waiting import PATIENCE, until

READS = {"tool_call": {"name": "fs.read", "input": {"path": "notes.txt"}}}
WRITES = {"tool_call": {"name": "fs.write", "input": {"path": "new.txt", "content": "x"}}}


@pytest.fixture(scope="module")
def asked(python: Path) -> Iterator[Ctx]:
    """A mount for the questions of this file, whose model/main is debug/echo."""
    with mounted(python) as mount:
        main = mount.root / "model" / "main"
        main.unlink(missing_ok=True)
        main.symlink_to("debug/echo")
        (mount.work / "notes.txt").write_text("a b c\n")
        yield mount


def script(*steps: object) -> str:
    return json.dumps(steps)


def program(ctx: Ctx, *words: str) -> list[str]:
    return [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "ask", *words]


def sessions(ctx: Ctx) -> list[str]:
    return [one["session"] for one in json.loads(ctx.ctx("session", "list", "--json").stdout)]


def stored(ctx: Ctx, text: str) -> list[Path]:
    """Returns the files of the state that contain the text."""
    files = [path for path in ctx.state.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_pipe_is_appended_and_the_answer_is_text(asked: Ctx) -> None:
    # issue: "git diff | ctx ask "write a commit message""; abi.md 8.22
    done = asked.run(program(asked, "write a commit message"), input="+ a line\n")
    assert (done.stdout, done.stderr, done.returncode) == ("write a commit message\n\n+ a line\n", "", 0)


def test_the_answer_comes_as_it_is_said(asked: Ctx) -> None:
    # abi.md 8.22
    said = script({"delta": "begun"}, {"hang": True})
    with subprocess.Popen(
        program(asked, "-m", "debug/script", said),
        env=asked.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as going:  # fmt: skip
        assert going.stdout
        assert going.stdout.read(5) == b"begun"
        going.send_signal(signal.SIGINT)
        out, _ = going.communicate(timeout=PATIENCE)
    assert (going.returncode, out) == (130, b"\n")


def test_the_last_question_is_gone_on_with(asked: Ctx) -> None:
    # issue: "unless -c goes on with the last"; abi.md 8.22
    before = sessions(asked)
    for words in (["one"], ["-c", "two"], ["-c", "three"]):
        asked.ctx("ask", *words)
    (session,) = set(sessions(asked)) - set(before)
    shown = json.loads(asked.ctx("session", "show", "debug/echo", session, "--json").stdout)
    assert [one["content"][0]["text"] for one in shown["messages"][::2]] == ["one", "two", "three"]
    asked.ctx("session", "rm", "debug/echo", session, "--yes")
    done = asked.ctx("ask", "-c", "four", check=False)
    assert (done.returncode, done.stderr.startswith("ctx ask: there is no question to go on with")) == (
        1,
        True,
    )


def test_what_is_not_logged_is_nowhere_on_the_disk(asked: Ctx) -> None:
    # issue: "--no-log keeps nothing"; abi.md 8.23
    before = sessions(asked)
    done = asked.ctx("ask", "--no-log", "-s", "sys-unlogged", "secret-unlogged")
    assert done.stdout == "secret-unlogged\n"
    assert (sessions(asked), stored(asked, "unlogged")) == (before, [])


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nor_when_the_command_is_killed(asked: Ctx, end: signal.Signals) -> None:
    # abi.md 8.23, 8.28
    said = script({"delta": "begun-gone"}, {"hang": True})
    words = ["--no-log", "-m", "debug/script", "-T", "fs.read", said]
    with subprocess.Popen(
        program(asked, *words), env=asked.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as going:
        assert going.stdout
        assert going.stdout.read(10) == b"begun-gone"
        going.send_signal(end)
        going.stdout.read()
    until(lambda: own_agents(asked), lambda there: not there)
    asked.at_rest()
    assert stored(asked, "begun-gone") == []


def own_agents(ctx: Ctx) -> list[str]:
    there = os.listdir(ctx.root / "home" / str(os.getuid()) / "agent")
    return [name for name in there if not name.endswith((".d", ".sock"))]


def test_a_code_block_and_json(asked: Ctx) -> None:
    # issue: "-x the first code block alone, -u tokens and cost on stderr"; abi.md 8.27
    (asked.config / "prices.toml").write_text('[models."debug/*"]\ninput = 1\noutput = 2\n')
    text = "so:\n```sh\nls -l\n```\nthat is it"
    done = asked.ctx("ask", "-x", "-u", text)
    assert (done.stdout, done.stderr) == ("ls -l\n", "8 tokens in, 8 out; 0.0000 USD\n")
    said = json.loads(asked.ctx("ask", "--json", text).stdout)
    assert (said["answer"], said["input_tokens"], said["cost"]) == (text, 8, 24e-6)
    assert said["session"] in sessions(asked)
    done = asked.ctx("ask", "-x", "no code", check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_tools_are_offered_for_one_question(asked: Ctx) -> None:
    # issue: "-T offers tools for this question"; abi.md 8.28
    said = script(READS, {"turn": True}, {"delta": "done"})
    done = asked.ctx("ask", "--json", "-m", "debug/script", "-T", "fs.*", said)
    session = json.loads(done.stdout)["session"]
    log = (asked.root / f"home/{os.getuid()}/agent/{session}.d/session/{session}/events.jsonl").read_text()
    results = [frame for line in log.splitlines() if (frame := json.loads(line))["type"] == "tool_result"]
    assert [(one["output"], one["is_error"]) for one in results] == [("a b c\n", False)]
    assert own_agents(asked) == []
    again = asked.ctx("ask", "-c", "--json", said)
    assert json.loads(again.stdout)["session"] == session
    assert asked.ctx("agent", "list").stdout.count("\n") == 2


def test_a_tool_that_changes_something_is_asked_about(asked: Ctx) -> None:
    # abi.md 8.28, 8.29
    said = script(WRITES, {"turn": True}, {"delta": "done"})
    words = ["-m", "debug/script", "-T", "fs.write", said]
    done = asked.ctx("ask", "--fail-on-denied", *words, check=False)
    assert (done.returncode, done.stdout) == (13, "done\n")
    assert "fs.write: denied: the user did not allow it." in done.stderr
    assert not (asked.work / "new.txt").exists()
    done = asked.ctx("ask", "--approve", "fs.write", *words)
    assert (done.stdout, (asked.work / "new.txt").read_text()) == ("done\n", "x")


def test_an_agent_has_tools_and_options_of_its_own(asked: Ctx) -> None:
    # abi.md 8.28
    for words, why in (
        (["-T", "fs.read"], "agent/base is an agent, with tools of its own"),
        (["-o", "temperature=0"], "--schema and -o are for a model without tools"),
    ):
        done = asked.ctx("ask", "-m", "agent/base", *words, "x", check=False)
        assert (done.returncode, why in done.stderr) == (2, True)


def test_denied_and_failed_calls_are_told_whoever_asks(asked: Ctx) -> None:
    # abi.md 8.29
    asked.ctx("agent", "new", "told", "--model", "debug/script", "--tools", "fs.read,fs.write")
    missing = {"tool_call": {"name": "fs.read", "input": {"path": "none"}}}
    said = script(missing, WRITES, {"turn": True}, {"delta": "done"})
    exec_ = [str(asked.root / "agent" / "told"), said]
    run = [*program(asked)[:-1], "run", "--fail-on-denied", "agent/told", said]
    for words, status, environ in (
        (exec_, 0, {}),
        (run, 13, {}),
        ([*run[:-3], *run[-2:]], 13, {"CTX_FAIL_ON_DENIED": "1"}),
        ([*program(asked), "-m", "agent/told", said], 13, {"CTX_FAIL_ON_DENIED": "1"}),
        ([*program(asked)[:-1], "send", "--fail-on-denied", "agent/told", said], 13, {}),
    ):
        done = asked.run(words, env={"CTX_OUTPUT": "text", **environ})
        assert (done.returncode, done.stdout.rstrip()) == (status, "done"), done
        assert "fs.read: ENOENT: none: No such file or directory" in done.stderr
        assert "fs.write: denied: the user did not allow it." in done.stderr
        assert "<tool_output" not in done.stderr
        assert ("a single call cannot ask" in done.stderr) == (words is exec_)
    texts = [*run[:-3], "--text", *run[-3:]]
    assert asked.run(texts, env={"CTX_OUTPUT": "jsonl"}).stdout == "done\n"  # abi.md 8.18
    frames = asked.run(run, env={"CTX_OUTPUT": "jsonl"})
    assert [frames.returncode, json.loads(frames.stdout.splitlines()[-1])["status"]] == [13, "ok"]


def test_a_call_that_a_helper_was_denied_counts_too(asked: Ctx) -> None:
    # abi.md 8.29
    asked.ctx("agent", "new", "helping", "--model", "debug/script", "--tools", "fs.write")
    asked.ctx("agent", "new", "led", "--model", "debug/script", "--tools", "agent.run")
    with open(asked.root / "agent/led.d/policy", "a") as policy:
        policy.write("allow led_t agent:helping start\n")
    task = script(WRITES, {"turn": True}, {"delta": "could not"})
    start = {"tool_call": {"name": "agent.run", "input": {"name": "helping", "task": task}}}
    said = ["agent/led", script(start, {"turn": True}, {"delta": "done"})]
    for words, status in (
        (["ask", "-m"], 0),
        (["ask", "--fail-on-denied", "-m"], 13),
        (["send", "--output", "text", "--fail-on-denied"], 13),
    ):
        more = ["--approve", "agent.run"]
        done = asked.ctx(words[0], *more, *words[1:], *said, check=False)
        assert (done.returncode, done.stdout.rstrip()) == (status, "done"), done
        assert "denied to a helper: fs.write: " in done.stderr


@pytest.mark.parametrize("ignored", [False, True])
def test_a_watched_run_is_interrupted_by_a_signal_to_ctx_alone(asked: Ctx, ignored: bool) -> None:
    # abi.md 4.26; a signal that was ignored on entry stays ignored
    said = script({"delta": "a"}, {"hang": True})
    asked.ctx("agent", "new", f"slow{ignored}", "--model", "debug/script", "--tools", "fs.read")
    words = [*program(asked)[:-1], "run", "--fail-on-denied", f"agent/slow{ignored}", said]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        going = subprocess.Popen(words, env=asked.environ, stdout=subprocess.PIPE, start_new_session=True)
    finally:
        if ignored:
            signal.signal(signal.SIGINT, before)
    with going:
        assert going.stdout
        while b'"delta"' not in (line := going.stdout.readline()):
            assert line
        going.send_signal(signal.SIGINT)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                going.wait(1)
            going.terminate()
        rest = going.stdout.read()
    assert (going.returncode, b'"code":"ECANCELED"' in rest) == (143 if ignored else 130, not ignored), rest


def test_a_person_sees_that_it_waits_and_then_the_answer(asked: Ctx) -> None:
    # issue: "a spinner on a terminal while it waits"
    environ = asked.environ | {"PATH": f"{asked.python.parent}:{asked.environ['PATH']}"}
    asked.ctx(
        "ask", "--save", "slow", "-m", "debug/script", script({"sleep": 2}, {"delta": "here"}, {"hang": True})
    )
    with screen(environ, asked.work) as shown:
        shown.type("ctx ask -t slow")
        shown.wait("waiting for debug/script (")
        shown.wait("here")
        shown.wait_gone("waiting for")
        shown.keys("C-c")
        shown.wait("cancelled")
        shown.wait_last(PROMPT.strip())


def test_a_person_is_asked_about_a_call(asked: Ctx) -> None:
    # abi.md 8.28
    environ = asked.environ | {"PATH": f"{asked.python.parent}:{asked.environ['PATH']}"}
    (asked.work / "new.txt").unlink(missing_ok=True)
    said = script({"sleep": 1}, WRITES, {"turn": True}, {"delta": "done"})
    asked.ctx("ask", "--save", "write", "-m", "debug/script", "-T", "fs.write", said)
    with screen(environ, asked.work) as shown:
        shown.type("ctx ask -t write")
        shown.wait("Allow fs.write on new.txt")
        shown.type("y")
        shown.wait("done")
        shown.wait_last(PROMPT.strip())
    assert (asked.work / "new.txt").read_text() == "x"
