"""Models as a user at a shell sees them: the lines of abi.md 4 about models, with the debug models."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.waiting import PATIENCE

HANG = '[{"delta":"begun"},{"hang":true}]'


def path(ctx: Ctx, name: str = "debug/echo") -> str:
    return str(ctx.root / "model" / name)


def call(ctx: Ctx, *words: str | bytes, name: str = "debug/echo", **options: Any) -> Answer:
    return Answer(ctx.run([path(ctx, name), *words], text=False, **options))


def play(ctx: Ctx, *steps: dict[str, Any], **options: Any) -> Answer:
    return call(ctx, json.dumps(steps), name="debug/script", **options)


def start(ctx: Ctx, prompt: str = HANG) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [path(ctx, "debug/script"), prompt],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=ctx.environ,
    )
    assert process.stdout is not None
    while b"begun" not in process.stdout.readline():
        pass
    return process


# -- input


def test_arguments_are_joined_into_the_prompt(ctx: Ctx) -> None:
    # abi.md 4.12
    answer = call(ctx, "hello", "big", "world")
    assert (answer.status, answer.output) == (0, "hello big world")
    # abi.md 6.2; issue: "start, one delta per word, message, usage, done"
    assert answer.types == ["start", "delta", "delta", "delta", "message", "usage", "done"]
    assert answer.frames[0]["model"] == "debug/echo"
    assert [list(frame)[:2] for frame in answer.frames] == [["type", "run"]] * 7
    assert answer.frames[4]["content"] == [{"type": "text", "text": "hello big world"}]


def test_one_argument_may_be_a_json_object(ctx: Ctx) -> None:
    # "one argument that is a JSON object with messages, input or task is taken as such. The same for stdin"
    messages = '{"messages":[{"role":"user","content":"first"},{"role":"user","content":"last"}]}'
    assert call(ctx, messages).output == "last"
    assert call(ctx, input=messages.encode()).output == "last"
    assert call(ctx, '{"task":"do"}').output == "do"
    assert call(ctx, '{"other":"do"}').output == '{"other":"do"}'
    # issue 14: "A JSON object with `input` and a `-` takes standard input into it"
    assert call(ctx, '{"input":"Look:"}', "-", input=b"this\n").output == "Look:\n\nthis"


def test_standard_input_is_the_prompt(ctx: Ctx) -> None:
    # "Input, in this order: arguments, else standard input"
    assert call(ctx, input=b"two\nlines\n").output == "two\nlines"
    # "for models and agents its text is appended to the prompt after a blank line"
    assert call(ctx, "Look:", "-", input=b"this\n").output == "Look:\n\nthis"


def test_a_loop_keeps_its_input(ctx: Ctx) -> None:
    # "With arguments, standard input is NOT read (a `while read` loop must keep its input)"
    script = 'n=0; while read line; do "$1" "$line" >/dev/null; n=$((n+1)); done; echo $n'
    assert ctx.run(["sh", "-c", script, "sh", path(ctx)], input="a\nb\nc\n").stdout == "3\n"


@pytest.mark.parametrize(
    ("words", "stdin", "code", "said"),
    [
        ([], b"", "EINVAL", "the prompt is empty"),  # "An empty prompt is EINVAL"
        ([" "], b"", "EINVAL", "the prompt is empty"),
        (["-", "-"], b"x", "EINVAL", "write - only once"),
        ([b"\xff"], b"", "EINVAL", "not UTF-8"),  # "Invalid UTF-8 where text is expected is EINVAL"
        ([], b"a\xff", "EINVAL", "not UTF-8"),
        ([], b"x" * ((16 << 20) + 1), "EMSGSIZE", "16 MiB"),  # "At most 16 MiB of input; more is EMSGSIZE"
        (['{"messages":1}'], b"", "EINVAL", "messages: expected array, got number"),
    ],
)
def test_what_is_no_prompt_exits_2(
    ctx: Ctx, words: list[str | bytes], stdin: bytes, code: str, said: str
) -> None:
    # "2 | bad arguments or input | EINVAL, EMSGSIZE"; "every failure ends in error, done"
    answer = call(ctx, *words, input=stdin)
    assert (answer.status, answer.code) == (2, code)
    assert said in answer.message
    assert answer.types[-2:] == ["error", "done"]


def test_sixteen_mebibytes_are_not_too_much(ctx: Ctx) -> None:
    # Each word is a delta, so there are four million deltas with CTX_SOAK.
    words = "a word or two of some length " if "CTX_SOAK" in os.environ else f"{'x' * 1023} "
    text = words * ((16 << 20) // len(words))
    done = ctx.run([path(ctx)], input=text, env={"CTX_OUTPUT": "text"})
    assert (done.returncode, len(done.stdout)) == (0, len(text))
    assert call(ctx, "still there").status == 0


def test_help(ctx: Ctx) -> None:
    # "`--help` as the only argument prints usage on stdout for every class, exit 0"
    for name in ("debug/echo", "debug/script"):
        done = ctx.run([path(ctx, name), "--help"])
        assert (done.returncode, done.stderr) == (0, "")
        assert f"usage: {name} PROMPT..." in done.stdout
    assert call(ctx, "--help", "x").code == "EINVAL"
    assert call(ctx, "--", "--help", "x").output == "--help x"


# -- a terminal


def on_a_terminal(ctx: Ctx, words: list[str], typed: bytes, **streams: Any) -> tuple[int, bytes]:
    """Run a command with a terminal as standard input, and as output and error unless these are passed."""
    master, slave = pty.openpty()
    try:
        streams = {"stdout": slave, "stderr": slave} | streams
        process = subprocess.Popen(words, stdin=slave, env=ctx.environ, start_new_session=True, **streams)
        os.close(slave)
        os.write(master, typed)
        said = b""
        while process.poll() is None or select.select([master], [], [], 0)[0]:
            if select.select([master], [], [], 0.05)[0]:
                try:
                    said += os.read(master, 4096)
                except OSError:  # EIO: no process has the terminal open any more
                    break
        return process.wait(PATIENCE), said
    finally:
        os.close(master)


def test_on_a_terminal_the_answer_is_text(ctx: Ctx) -> None:
    # "JSONL frames, when stdout is not a terminal; text on a terminal"
    assert on_a_terminal(ctx, [path(ctx), "hello there"], b"") == (0, b"hello there\r\n")


def test_typed_input_is_read_to_its_end_when_output_is_piped(ctx: Ctx) -> None:
    # "when stdout is not a terminal, both read stdin to EOF instead"
    with open(ctx.work / "out", "w+b") as out:
        status, _ = on_a_terminal(ctx, [path(ctx)], b"typed\n\x04", stdout=out)
        out.seek(0)
        assert status == 0
        assert b'"text":"typed"' in out.read()


# -- output


def test_text_or_frames_as_asked(ctx: Ctx) -> None:
    # "CTX_OUTPUT=jsonl|text decides otherwise"
    text = {"CTX_OUTPUT": "text"}
    assert ctx.run([path(ctx), "a", "b"], env=text).stdout == "a b"
    # "In text mode errors go to stderr as `<object>: <CODE>: <message>`"
    failing = '[{"delta":"so far"},{"error":{"code":"EACCES","message":"ask them"}}]'
    done = ctx.run([path(ctx, "debug/script"), failing], env=text)
    assert (done.returncode, done.stdout, done.stderr) == (
        13, "so far", "debug/script: EACCES: ask them\n"
    )  # fmt: skip


def test_frames_of_every_kind(ctx: Ctx) -> None:
    # abi.md 6.2
    answer = play(
        ctx,
        {"progress": "half"},
        {"tool_call": {"name": "fs.read", "input": {"path": "a"}}},
        {"message": "m"},
        {"usage": {"input_tokens": 1, "output_tokens": 2}},
    )
    run = answer.frames[0]["run"]
    assert answer.frames[1:] == [
        {"type": "progress", "run": run, "message": "half"},
        {"type": "tool_call", "run": run, "call": "call2", "name": "fs.read", "input": {"path": "a"}},
        {"type": "message", "run": run, "role": "assistant", "content": [{"type": "text", "text": "m"}]},
        {"type": "usage", "run": run, "input_tokens": 1, "output_tokens": 2},
        {"type": "done", "run": run, "status": "ok"},
    ]


def test_frames_are_flushed_as_they_happen(ctx: Ctx) -> None:
    # "one line each, flushed as they happen": `start` returns, with the model still at work
    with start(ctx) as process:
        process.kill()


@pytest.mark.parametrize(
    ("code", "status"),
    [("EIO", 1), ("ETIMEDOUT", 1), ("EMSGSIZE", 2), ("EPERM", 13), ("EHOSTDOWN", 69), ("EPROTO", 70)],
)
def test_exit_table(ctx: Ctx, code: str, status: int) -> None:
    answer = play(ctx, {"error": {"code": code, "message": "as asked"}})
    assert (answer.status, answer.code, answer.message) == (status, code, "as asked")
    assert answer.frames[-1] == {**answer.frames[-1], "status": "error", "code": code}


def test_an_approval_needs_a_conversation(ctx: Ctx) -> None:
    answer = play(ctx, {"approval": {"name": "shell.exec"}})
    assert (answer.status, answer.output) == (0, "deny")
    (told,) = (frame for frame in answer.frames if frame["type"] == "observer")
    assert "ctx chat" in json.loads(told["content"])["reason"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_cancel(ctx: Ctx, number: signal.Signals, status: int) -> None:
    # "130, 143, 129 | cancelled by SIGINT, SIGTERM, SIGHUP | ECANCELED"
    with start(ctx) as process:
        process.send_signal(number)
        assert process.stdout is not None
        rest = process.stdout.read().splitlines()
        assert process.wait(PATIENCE) == status
    if number == signal.SIGINT:  # "the first sends cancel and waits for the last frame"
        last = json.loads(rest[-1])
        assert (last["type"], last["status"], last["code"]) == ("done", "cancelled", "ECANCELED")


def test_closed_output_cancels(ctx: Ctx) -> None:
    # "When stdout closes (`| head -1`) the run is cancelled ... and the runner dies of SIGPIPE, as cat does"
    script = """"$1" '[{"burst":1000000}]' | head -1 >/dev/null; echo ${PIPESTATUS[0]}"""
    done = ctx.run(["bash", "-c", script, "bash", path(ctx, "debug/script")])
    assert done.stdout == "141\n"


def test_a_killed_runner_cancels(fresh: Ctx) -> None:
    # "SIGKILL of the runner cancels the run"
    with start(fresh) as process:
        assert fresh.status["runs"] == "1 active, 1 total"
        process.kill()
    fresh.at_rest()
    log = (fresh.root / "model/debug/script.d/log").read_text()
    assert json.loads(log)["code"] == "ECANCELED"


def test_the_daemon_killed_in_an_answer(fresh: Ctx) -> None:
    # "69 | object there, runtime not | EHOSTDOWN (daemon lost during a call, ...)"
    with start(fresh) as process:
        os.kill(fresh.pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 69
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["error", "done"]
    fresh.mount()
    assert call(fresh, "back").output == "back"


def test_the_daemon_stopped_in_an_answer(fresh: Ctx) -> None:
    # abi.md 8.10
    with start(fresh) as process:
        fresh.ctx("umount", str(fresh.root))
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 69
    assert json.loads(out.splitlines()[-1])["code"] == "EHOSTDOWN"


# -- from inside a run, and as others


def test_a_tool_calls_a_model(ctx: Ctx) -> None:
    # "A call made from inside a run ... inherits that run's label, confinement and depth"
    answer = ctx.call("shell.exec", f"{path(ctx)} nested | tail -n 1")
    assert json.loads(answer.output)["status"] == "ok"


def test_depth_is_limited_for_models_too(python: Any) -> None:
    with mounted(python, [], "[limits]\ndepth = 1\n") as ctx:
        once = f"{path(ctx)} one"
        assert '"status":"ok"' in ctx.call("shell.exec", once).output
        twice = ctx.call("shell.exec", f"{ctx.tool('shell.exec')} '{path(ctx)} two'").output
        assert "EAGAIN" in twice
        assert "the limit of 1 nested calls" in twice


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody, which only root can")
def test_everybody_may_ask_root_s_models(ctx: Ctx) -> None:
    answer = call(ctx, "hello", uid=NOBODY)
    assert (answer.status, answer.output) == (0, "hello")
    lines = (ctx.root / "model/debug/echo.d/log").read_text().splitlines()
    line = next(line for line in map(json.loads, lines) if line["run"] == answer.frames[0]["run"])
    assert (line["uid"], line["source"], line["input_tokens"]) == (NOBODY, "exec", 1)


# -- controls to read and to set


def test_reading_the_executable_gives_metadata(ctx: Ctx) -> None:
    # abi.md 1.19
    first, *lines = (ctx.root / "model/debug/echo").read_text().splitlines()
    assert first.startswith("#!")
    said = dict(line.removeprefix("# cortexfs.").split("=", 1) for line in lines)
    assert said.pop("description")
    assert said.pop("runner")
    assert said == {
        "object": "model",
        "name": "debug/echo",
        "status": "ready",
        "plugin": "builtin",
        "id": "echo",
        "driver": "debug.echo",
        "session": "socket",
        "cap": "chat,stream,session",
    }


def test_controls_of_a_model(fresh: Ctx) -> None:
    # abi.md 3.17
    controls = fresh.root / "model/debug/echo.d"
    for name, value in (("effort", "high"), ("default", "temperature=0"), ("fallback", "debug/script")):
        (controls / name).write_text(f"{value}\n")
        assert call(fresh, "as before").output == "as before"
    (controls / "driver").write_text("default=none.such\nexec=debug.script\n")
    assert call(fresh, '[{"delta":"played"}]').output == "played"
    (controls / "driver").write_text("none.such\n")
    lacking = call(fresh, "x")
    assert (lacking.status, lacking.code) == (69, "EHOSTDOWN")
    assert "none.such" in lacking.message
    # "removing or renaming away a writable control leaves it absent, meaning its default"
    (controls / "driver").unlink()
    assert call(fresh, "again").output == "again"


def test_ctx_knows_models(ctx: Ctx) -> None:
    listed = ctx.ctx("ls", "model").stdout
    assert "model/debug/echo " in listed
    assert "model/debug/script " in listed
    for name in ("model/debug/echo", "debug/echo"):
        assert '"text":"hi"' in ctx.ctx("run", name, "hi").stdout
    assert ctx.ctx("complete", "--", "ctx", "run", "model/debug/").stdout.split() == [
        "model/debug/echo", "model/debug/script"
    ]  # fmt: skip
    assert ctx.ctx("complete", "--", path(ctx), "--").stdout == "--help\n"
    assert ctx.ctx("complete", "--", path(ctx), "he").stdout == ""


def test_an_alias_of_a_model(fresh: Ctx) -> None:
    # abi.md 1.5
    (fresh.root / "model/short").symlink_to(path(fresh))
    assert call(fresh, "by its short name", name="short").output == "by its short name"
