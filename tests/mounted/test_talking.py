"""`ctx send`, `resume`, `cancel`, `ping` and `session` on a real mount, as scripts use them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.waiting import PATIENCE

ECHO, SCRIPT = "debug/echo", "debug/script"
HANGS = json.dumps([{"delta": "begun"}, {"hang": True}])


@pytest.fixture(scope="module")
def talks(python: Path) -> Iterator[Ctx]:
    """A mount for the conversations of this file."""
    with mounted(python) as mount:
        yield mount


class Sending:
    """A `ctx send` that runs beside the test."""

    def __init__(self, ctx: Ctx, *words: str) -> None:
        program = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "send", *words]
        self.process = subprocess.Popen(
            program,
            env=ctx.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.heard: list[dict[str, Any]] = []

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def until(self, type_: str) -> dict[str, Any]:
        assert self.process.stdout
        while not self.heard or self.heard[-1]["type"] != type_:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0]
            line = self.process.stdout.readline()
            assert line, "it ended"
            self.heard.append(json.loads(line))
        return self.heard[-1]

    def end(self) -> int:
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.heard += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode


def events(ctx: Ctx, object_: str, session: str) -> list[dict[str, Any]]:
    said = ctx.ctx("resume", object_, "--session", session).stdout
    return [json.loads(line) for line in said.splitlines()]


def wait_for(ctx: Ctx, object_: str, session: str, type_: str) -> None:
    """Wait until the session has an event of this type."""
    program = [
        str(ctx.python),
        "-I",
        "-m",
        "cortexfs.cli.main",
        "resume",
        object_,
        "--session",
        session,
        "--follow",
    ]
    with subprocess.Popen(program, env=ctx.environ, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout
        assert any(json.loads(line)["type"] == type_ for line in following.stdout)
        following.terminate()


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ({"delta": "fine"}, 0),
        *(
            ({"error": {"code": code, "message": "no"}}, status)
            for code, status in (("EIO", 1), ("EINVAL", 2), ("EACCES", 13), ("EHOSTDOWN", 69), ("EPROTO", 70))
        ),
    ],
)
def test_the_exit_status_is_that_of_the_run(talks: Ctx, step: dict[str, Any], status: int) -> None:
    # abi.md 4.23, 4.24, 4.25, 4.26
    done = talks.ctx("send", SCRIPT, json.dumps([step]), "--output", "text", check=False)
    assert done.returncode == status
    if status:
        assert done.stderr == f"debug/script: {step['error']['code']}: no\n"
    else:
        assert (done.stdout, done.stderr) == ("fine\n", "")


def test_the_first_interrupt_cancels(talks: Ctx) -> None:
    # abi.md 5.34: the first
    with Sending(talks, SCRIPT, HANGS, "--session", "int") as sending:
        sending.until("delta")
        sending.process.send_signal(signal.SIGINT)
        assert sending.end() == 130
        assert sending.heard[-1]["status"] == "cancelled"
        assert events(talks, SCRIPT, "int")[-1]["status"] == "cancelled"


def test_the_second_interrupt_leaves(talks: Ctx) -> None:
    # abi.md 5.34: the second
    with Sending(talks, SCRIPT, HANGS, "--session", "int2") as sending:
        sending.until("delta")
        pid = talks.pid
        os.kill(pid, signal.SIGSTOP)  # so the daemon answers no cancel
        try:
            sending.process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                sending.process.wait(1)  # the first interrupt gets time to arrive
            sending.process.send_signal(signal.SIGINT)
            assert sending.process.wait(PATIENCE) == 130
        finally:
            os.kill(pid, signal.SIGCONT)
        sending.end()


def test_a_kill_leaves_the_run_going(talks: Ctx) -> None:
    # commands.md: "A kill by another signal leaves the run going"
    with Sending(talks, SCRIPT, HANGS, "--session", "killed") as sending:
        run = sending.until("start")["run"]
        sending.process.terminate()
        sending.end()
        assert talks.ctx("cancel", SCRIPT, run).stderr == f"cancelled {run}\n"


def test_nobody_reads_any_more(talks: Ctx) -> None:
    # commands.md: "when nobody reads the output any more (`| head -1`) the run is cancelled as well"
    steps = json.dumps([{"delta": "x"}, {"sleep": 0.2}, {"delta": "y"}, {"hang": True}])
    python = f"{talks.python} -I -m cortexfs.cli.main"
    done = talks.run(["sh", "-c", f"{python} send {SCRIPT} --session head '{steps}' | head -1"])
    assert '"start"' in done.stdout
    wait_for(talks, SCRIPT, "head", "done")
    assert events(talks, SCRIPT, "head")[-1]["status"] == "cancelled"


def test_a_retry_says_it_once(talks: Ctx) -> None:
    # abi.md 5.14
    first = talks.ctx("send", ECHO, "--id", "once", "--session", "retry", "hello").stdout
    assert talks.ctx("send", ECHO, "--id", "once", "--session", "retry", "hello").stdout == first
    other = talks.ctx("send", ECHO, "--id", "once", "--session", "retry", "other", check=False)
    assert other.returncode == 2
    text = talks.ctx(
        "send", ECHO, "--id", "once", "--session", "retry", "other", "--output", "text", check=False
    )
    assert text.stderr.startswith("debug/echo: EINVAL: ")


def test_resume_goes_on_behind_an_event(talks: Ctx) -> None:
    # abi.md 5.18
    talks.ctx("send", ECHO, "--session", "after", "one two")
    every = events(talks, ECHO, "after")
    assert [event["type"] for event in every][-1] == "done"
    middle = every[2]["id"]
    rest = talks.ctx("resume", ECHO, "--session", "after", "--after", middle).stdout
    assert [json.loads(line) for line in rest.splitlines()] == every[3:]
    text = talks.ctx("resume", ECHO, "--session", "after", "--output", "text").stdout
    assert text == "> one two\none two\n"


def test_resume_follows_what_happens(talks: Ctx) -> None:
    with Sending(talks, SCRIPT, HANGS, "--session", "live") as sending:
        sending.until("delta")
        program = [
            str(talks.python),
            "-I",
            "-m",
            "cortexfs.cli.main",
            "resume",
            SCRIPT,
            "--session",
            "live",
            "--follow",
        ]
        with subprocess.Popen(program, env=talks.environ, stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout
            heard = [json.loads(following.stdout.readline()) for _ in range(3)]
            assert heard[-1]["text"] == "begun"
            talks.ctx("cancel", SCRIPT, heard[0]["run"])
            assert "begun" in following.stdout.readline()  # the message of what was said
            assert json.loads(following.stdout.readline())["status"] == "cancelled"
            following.send_signal(signal.SIGINT)
            assert following.wait(PATIENCE) == 130
        assert sending.end() == 130


def test_what_asks_where_nobody_is_asked_is_denied(talks: Ctx) -> None:
    # commands.md: "Calls that ask for approval are asked about on a terminal and denied elsewhere"
    step = {"approval": {"name": "sh", "input": {}, "effects": [], "reason": "so"}}
    done = talks.ctx("send", SCRIPT, json.dumps([step]), "--output", "text")
    assert done.stdout == "deny\n"
    piped = talks.run(
        [str(talks.python), "-I", "-m", "cortexfs.cli.main", "chat", SCRIPT], input=json.dumps([step])
    )
    assert piped.stdout == "deny\n"


def test_the_chat_in_a_pipe(talks: Ctx) -> None:
    program = [str(talks.python), "-I", "-m", "cortexfs.cli.main", "chat", ECHO, "--session", "pipe"]
    done = talks.run(program, input="two\nlines\n")
    assert (done.stdout, done.stderr, done.returncode) == ("two\nlines\n", "", 0)
    failed = talks.run([*program[:-3], SCRIPT], input="no script")
    assert failed.returncode == 2
    assert failed.stderr.startswith("debug/script: EINVAL: ")


def test_ping(talks: Ctx) -> None:
    said = json.loads(talks.ctx("ping", ECHO, "--count", "20", "--json").stdout)
    assert (said["object"], said["count"]) == ("model/debug/echo", 20)


def test_a_stopped_daemon_hangs_no_command(talks: Ctx) -> None:
    # commands.md: "No command hangs on a mount whose daemon hangs"
    pid = talks.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        commands = (["ping", ECHO], ["send", ECHO, "x"], ["session", "list"], ["chat", ECHO])
        with ThreadPoolExecutor(len(commands)) as at_once:
            for done in at_once.map(lambda words: talks.ctx(*words, check=False), commands):
                assert done.returncode == 69, done.args
                assert "does not answer" in done.stderr
    finally:
        os.kill(pid, signal.SIGCONT)


def test_sessions_through_their_files(talks: Ctx) -> None:
    # abi.md 5.33
    for session in ("kept", "goes"):
        talks.ctx("send", ECHO, "--session", session, "--cwd", "/tmp", f"said in {session}")
    rows = json.loads(talks.ctx("session", "list", ECHO, "--json").stdout)
    assert [row["session"] for row in rows][:2] == ["goes", "kept"]
    assert rows[0]["state"] == "done"
    shown = json.loads(talks.ctx("session", "show", ECHO, "goes", "--json").stdout)
    assert shown["meta"]["cwd"] == "/tmp"
    assert [message["content"][0]["text"] for message in shown["messages"]] == ["said in goes"] * 2
    talks.ctx("session", "rm", ECHO, "goes", "--yes")
    assert talks.ctx("session", "show", ECHO, "goes", check=False).returncode == 1
    dry = talks.ctx("session", "gc", ECHO, "--keep", "0", "--dry-run").stdout
    assert "model/debug/echo kept" not in dry  # it is the newest session
    talks.ctx("send", ECHO, "--session", "newer", "x")
    assert "model/debug/echo kept" in talks.ctx("session", "gc", ECHO, "--keep", "1").stdout
    assert talks.ctx("session", "show", ECHO, "kept", check=False).returncode == 1


def test_shared_sessions_are_everybodys(talks: Ctx) -> None:
    # abi.md 5.17
    talks.ctx("send", ECHO, "--scope", "shared", "--session", "ours", "hello")
    listed = talks.ctx("session", "list", "--scope", "shared").stdout
    assert "ours" in listed
    assert "ours" not in talks.ctx("session", "list").stdout
    said = talks.ctx("resume", ECHO, "--scope", "shared", "--session", "ours", "--output", "text").stdout
    assert said == "> hello\nhello\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody, which only root can")
def test_another_user_has_sessions_of_his_own(talks: Ctx) -> None:
    # abi.md 5.17
    talks.ctx("send", ECHO, "--session", "mine", "secret of root")
    program = [str(talks.python), "-I", "-m", "cortexfs.cli.main"]
    done = talks.run([*program, "send", ECHO, "--session", "mine", "--output", "text", "his"], uid=NOBODY)
    assert done.stdout == "his\n"
    listed = talks.run([*program, "session", "show", ECHO, "mine"], uid=NOBODY)
    assert "his" in listed.stdout
    assert "secret" not in listed.stdout
    # ctx.md: "Only the daemon's owner can remove shared sessions."
    talks.run([*program, "send", ECHO, "--scope", "shared", "--session", "all", "hello"], uid=NOBODY)
    removal = [*program, "session", "rm", ECHO, "all", "--scope", "shared", "--yes"]
    refused = talks.run(removal, uid=NOBODY)
    assert (refused.returncode, refused.stderr) == (
        13,
        "ctx session: only the daemon's owner may remove shared sessions\n",
    )
    assert talks.run(removal).returncode == 0


def test_where_nobody_can_be_asked_the_denial_is_told(talks: Ctx) -> None:
    # commands.md: "Calls that ask for approval are asked about on a terminal and denied elsewhere"
    script = '[{"approval": {"name": "fs.write"}}]'
    done = talks.ctx("send", "debug/script", "--output", "text", "--scope", "temp", script)
    assert done.stdout == "deny\n"
    mend = "run ctx chat on a terminal, or allow it with --approve fs.write of ctx ask or ctx send"
    assert done.stderr.splitlines() == [
        "Allow fs.write?",
        f"denied, as there is no terminal to ask on; {mend}",
    ]


def test_calls_that_are_approved_beforehand(talks: Ctx) -> None:
    # commands.md: "`--approve TOOL` ... allows each call of that tool once"
    steps = [{"approval": {"name": name, "call": f"c{n}"}} for n, name in enumerate(("a", "b", "c.d", "a"))]
    done = talks.ctx(
        "send",
        SCRIPT,
        "--approve",
        "a",
        "--approve",
        "c.*",
        "--output",
        "text",
        "--scope",
        "temp",
        json.dumps(steps),
    )
    assert done.stdout == "allow_once\ndeny\nallow_once\nallow_once\n"
    assert done.stderr.count("denied, as there is no terminal to ask on") == 1


def test_a_socket_names_its_object(talks: Ctx) -> None:
    assert talks.ctx("ping", f"{talks.root}/model/debug/echo.sock").returncode == 0
