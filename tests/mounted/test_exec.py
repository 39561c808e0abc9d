"""abi.md 4, sentence by sentence, as a user at a shell sees it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Answer, Ctx
from tests.waiting import PATIENCE

# -- input


def test_one_argument_that_begins_with_a_brace_is_the_input(ctx: Ctx) -> None:
    # abi.md 4.7: /ctx/tool/fs.read '{"path":"README.md"}'
    (ctx.work / "README.md").write_text("# hello\n")
    answer = ctx.call("fs.read", '{"path":"README.md"}')
    assert (answer.status, answer.output) == (0, "# hello\n")


def test_bare_words_fill_required_properties(ctx: Ctx) -> None:
    # abi.md 4.9
    (ctx.work / "bare.md").write_text("bare\n")
    assert ctx.call("fs.read", "bare.md").output == "bare\n"


def test_standard_input_is_one_json_object(ctx: Ctx) -> None:
    # abi.md 4.1, 4.11: echo '{"path":"README.md"}' | /ctx/tool/fs.read
    (ctx.work / "in.md").write_text("in\n")
    assert ctx.call("fs.read", input=b'{"path":"in.md"}').output == "in\n"


def test_empty_standard_input_is_an_empty_object(ctx: Ctx) -> None:
    # abi.md 4.11
    answer = ctx.call("fs.list", input=b"")
    assert answer.status == 0
    answer = ctx.call("fs.read", input=b"")
    assert (answer.status, answer.code) == (2, "EINVAL")
    assert "path" in answer.message


def test_with_arguments_standard_input_is_not_read(ctx: Ctx) -> None:
    # abi.md 4.2
    script = 'n=0; while read line; do "$1" "$line" >/dev/null; n=$((n+1)); done; echo $n'
    done = ctx.run(["sh", "-c", script, "sh", ctx.tool("text.word_count")], input="a\nb\nc\n")
    assert done.stdout == "3\n"


def test_a_dash_is_the_text_of_standard_input(ctx: Ctx) -> None:
    # abi.md 4.3
    assert ctx.call("text.word_count", "-", input=b"one two three").output == "3 words"
    assert ctx.call("text.word_count", "--text", "-", input=b"one two").output == "2 words"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--text", "t", "--count", "3"], {"text": "t", "count": 3}),
        (["--text=t", "--ratio=0.25"], {"text": "t", "ratio": 0.25}),
        (["t", "--flag"], {"text": "t", "flag": True}),
        (["t", "--no-flag"], {"text": "t", "flag": False}),
        (["text=t", "count=-4"], {"text": "t", "count": -4}),
        (["t", "--items", "a", "--items", "b"], {"text": "t", "items": ["a", "b"]}),
        (["--", "--text"], {"text": "--text"}),
    ],
)
def test_flags(ctx: Ctx, arguments: list[str], expected: dict[str, object]) -> None:
    answer = ctx.call("show.types", *arguments)
    assert answer.status == 0, answer
    assert expected.items() <= json.loads(answer.output).items()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["t", "--colour", "red"], "colour"),  # abi.md 4.10
        (["--count", "x", "t"], "count"),
        (["t", "--items", "a", "surplus"], "surplus"),
        (['{"text": 5}'], "text: expected string, got number"),  # abi.md 4.15, in these words
        (["{not json"], ""),
        ([b"\xff\xfe"], "UTF-8"),  # abi.md 4.17
    ],
)
def test_bad_arguments_exit_2(ctx: Ctx, arguments: list[str | bytes], says: str) -> None:
    answer = ctx.call("show.types", *arguments)
    assert (answer.status, answer.code) == (2, "EINVAL"), answer
    assert says in answer.message
    assert answer.types[-2:] == ["error", "done"]


def test_seventeen_megabytes_are_too_much(ctx: Ctx) -> None:
    # abi.md 4.16
    answer = ctx.call("text.word_count", "-", input=b"x" * (17 << 20))
    assert (answer.status, answer.code) == (2, "EMSGSIZE")
    answer = ctx.call("text.word_count", "-", input=b"x" * (15 << 20))
    assert (answer.status, answer.output) == (0, "1 words")


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\xff" * 100,
        b"[" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"path": 1e400}',
        b'{"path": ' + b"9" * 5000 + b"}",
        b'"text"',
        b"[]",
        b"{} {}",
    ],
)
def test_garbage_on_standard_input_is_einval(ctx: Ctx, data: bytes) -> None:
    answer = ctx.call("fs.read", input=data)
    assert (answer.status, answer.code) == (2, "EINVAL"), answer


def test_duplicate_keys_the_last_wins(ctx: Ctx) -> None:
    (ctx.work / "last").write_text("last\n")
    assert ctx.call("fs.read", '{"path":"first","path":"last"}').output == "last\n"


# -- output


def test_frames_in_order_with_their_fields(ctx: Ctx) -> None:
    # abi.md 4.18, 4.19, 6.2
    answer = ctx.call("text.word_count", "hello big world")
    run = answer.frames[0]["run"]
    assert answer.lines == [
        f'{{"type":"start","run":"{run}","tool":"text.word_count"}}'.encode(),
        f'{{"type":"delta","run":"{run}","text":"3 words"}}'.encode(),
        f'{{"type":"done","run":"{run}","status":"ok"}}'.encode(),
    ]


def test_run_ids_are_unique(ctx: Ctx) -> None:
    runs = {ctx.call("text.word_count", "x").frames[0]["run"] for _ in range(20)}
    assert len(runs) == 20


def test_signals_of_a_tool_become_frames(ctx: Ctx) -> None:
    # abi.md 6.2
    answer = ctx.call("show.signals")
    assert answer.types == ["start", "progress", "observer", "delta", "media", "delta", "done"]
    assert answer.frames[1]["message"] == "half way"
    assert (answer.frames[2]["source"], answer.frames[2]["content"]) == ("eye", "seen")
    assert answer.frames[4]["attachment"]["mime_type"] == "image/png"
    assert answer.output == "streamed returned"  # abi.md 4.28


def test_ctx_output_decides(ctx: Ctx) -> None:
    # abi.md 4.18
    (ctx.work / "exact").write_bytes(b"no newline at the end")
    done = ctx.run([ctx.tool("fs.read"), "exact"], env={"CTX_OUTPUT": "text"})
    assert done.stdout == "no newline at the end"


def test_text_errors_go_to_standard_error(ctx: Ctx) -> None:
    # abi.md 4.21
    done = ctx.run([ctx.tool("fs.read"), "missing"], env={"CTX_OUTPUT": "text"})
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"fs\.read: ENOENT: .*missing.*\n", done.stderr)


def test_help_on_standard_output(ctx: Ctx) -> None:
    # abi.md 4.14
    done = ctx.run([ctx.tool("fs.read"), "--help"])
    assert done.returncode == 0
    assert "fs.read" in done.stdout
    assert "path" in done.stdout.lower()
    assert done.stderr == ""


def on_a_terminal(ctx: Ctx, words: list[str]) -> tuple[int, str]:
    """Run a call with all three standard files on a new terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=ctx.environ,
        cwd=ctx.work,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], PATIENCE)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # EIO: the other side of the terminal is closed
                break
        os.close(ours)
        return process.wait(PATIENCE), seen.decode().replace("\r\n", "\n")


def test_text_on_a_terminal(ctx: Ctx) -> None:
    assert on_a_terminal(ctx, [ctx.tool("text.word_count"), "a b"]) == (0, "2 words\n")


def test_no_argument_on_a_terminal_prints_usage(ctx: Ctx) -> None:
    # abi.md 4.5
    status, seen = on_a_terminal(ctx, [ctx.tool("fs.read")])
    assert status == 2
    assert "fs.read" in seen
    assert len(seen.splitlines()) < 12


def test_a_tool_that_takes_nothing_runs_on_a_terminal(ctx: Ctx) -> None:
    # abi.md 4.5
    status, seen = on_a_terminal(ctx, [ctx.tool("bad.soft")])
    assert (status, seen.startswith("bad.soft: EIO: ")) == (1, True), seen


# -- exit status


@pytest.mark.parametrize(
    ("name", "arguments", "status", "code"),
    [
        ("fs.read", ["missing"], 1, "ENOENT"),
        ("fs.read", ["."], 1, "EISDIR"),
        ("bad.soft", [], 1, "EIO"),  # abi.md 4.29
        ("bad.invalid", [], 2, "EINVAL"),  # "ToolError.InvalidInput EINVAL"
        ("bad.failed", [], 1, "EIO"),  # "ToolError.ExecutionFailed EIO or the errno that it names"
        ("bad.failed", ["--code", "EREMOTEIO"], 1, "EREMOTEIO"),
        ("bad.failed", ["--code", "EPERM"], 13, "EPERM"),
        ("bad.oserror", [], 1, "ENOSPC"),  # "an OSError its errno"
        ("bad.words", ["1"], 1, "ENOSPC"),  # with a number as its text
        ("bad.words", ["2"], 1, "EIO"),  # and as its code
        ("bad.raise", [], 70, "EPROTO"),  # "any other exception, a crash or a broken protocol EPROTO"
        ("bad.garbage", [], 70, "EPROTO"),
        ("bad.sysexit", [], 70, "EPROTO"),
        ("bad.exit", [], 70, "EPROTO"),
        ("bad.segfault", [], 70, "EPROTO"),
        ("bad.loop", [], 1, "ETIMEDOUT"),  # "a timeout ETIMEDOUT"
        ("bad.hang", [], 1, "ETIMEDOUT"),
        ("bad.allocate", [], 70, "EPROTO"),
    ],
)
def test_exit_table(ctx: Ctx, name: str, arguments: list[str], status: int, code: str) -> None:
    answer = ctx.call(name, *arguments, input=b"")
    assert (answer.status, answer.code) == (status, code), answer
    # abi.md 4.20
    assert answer.types[-2:] == ["error", "done"]
    assert answer.frames[-1]["status"] == "error"
    assert "Traceback" not in answer.message
    assert ctx.call("show.types", "after").status == 0


def test_what_a_tool_prints_is_not_its_output(ctx: Ctx) -> None:
    answer = ctx.call("bad.print", input=b"")
    assert (answer.status, answer.output) == (0, "said")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody, which only root can")
def test_not_permitted_exits_13(ctx: Ctx) -> None:
    # abi.md 4.23
    secret = ctx.work / "secret"
    secret.write_text("root's\n")
    secret.chmod(0o600)
    answer = ctx.call("fs.read", str(secret), uid=65534)
    assert (answer.status, answer.code) == (13, "EACCES")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_cancel(ctx: Ctx, number: signal.Signals, status: int) -> None:
    # abi.md 4.19, 4.26, 4.31, 4.32
    with subprocess.Popen(
        [ctx.tool("shell.exec"), "echo begun; sleep 1000"],
        stdout=subprocess.PIPE,
        env=ctx.environ,
        cwd=ctx.work,
    ) as process:
        assert process.stdout is not None
        while b"begun" not in process.stdout.readline():
            pass
        process.send_signal(number)
        rest = process.stdout.read().splitlines()
        assert process.wait(PATIENCE) == status
    if number == signal.SIGINT:  # "the first sends cancel and waits for the last frame"
        last = json.loads(rest[-1])
        assert (last["type"], last["status"], last["code"]) == ("done", "cancelled", "ECANCELED")


def test_closed_output_cancels(ctx: Ctx) -> None:
    # abi.md 4.22
    script = '"$1" | head -1 >/dev/null; echo ${PIPESTATUS[0]}'
    done = ctx.run(["bash", "-c", script, "bash", ctx.tool("bad.flood")])
    assert done.stdout == "141\n"


# -- ways to get there


def test_through_links_and_relative_paths(ctx: Ctx) -> None:
    link = ctx.work / "wc"
    link.symlink_to(ctx.tool("text.word_count"))
    (ctx.work / "again").symlink_to("wc")
    for path in (str(link), "./wc", "./again"):
        assert Answer(ctx.run([path, "a b"], text=False)).output == "2 words"
    done = ctx.run(["sh", "-c", "cd tool && ./text.word_count 'a b c'"], cwd=ctx.root)
    assert '"3 words"' in done.stdout


def test_as_interpreter_of_a_script(ctx: Ctx) -> None:
    script = ctx.work / "reader"
    script.write_text(f"#!{ctx.tool('fs.read')}\nthe script itself\n")
    script.chmod(0o755)
    answer = Answer(ctx.run([str(script)], text=False))
    assert answer.output.endswith("the script itself\n")


def test_find_exec_and_xargs(ctx: Ctx) -> None:
    for index in range(30):
        (ctx.work / f"many{index}").write_text("w " * index)
    found = ctx.run(["find", ".", "-name", "many*", "-exec", ctx.tool("fs.stat"), "{}", ";"])
    assert found.stdout.count('"status":"ok"') == 30
    words = "\n".join(f"w{index}" for index in range(60))
    done = ctx.run(["xargs", "-P", "8", "-n", "1", ctx.tool("text.word_count")], input=words)
    assert (done.returncode, done.stdout.count('"1 words"')) == (0, 60)


def test_in_an_empty_environment(ctx: Ctx) -> None:
    done = ctx.run(["env", "-i", ctx.tool("text.word_count"), "a"])
    assert '"1 words"' in done.stdout


def test_environment_is_a_small_allowlist(ctx: Ctx) -> None:
    answer = ctx.call("show.env", env={"LC_TIME": "C", "SECRET_TOKEN": "x", "TZ": "UTC"}, input=b"")
    seen = json.loads(answer.output)
    assert seen["LC_TIME"] == "C"
    assert seen["TZ"] == "UTC"
    assert "SECRET_TOKEN" not in seen
    assert "CTX_STATE" not in seen


def test_a_copy_is_no_object(ctx: Ctx) -> None:
    copy = ctx.work / "copy"
    copy.write_bytes(Path(ctx.tool("fs.read")).read_bytes())
    copy.chmod(0o755)
    done = ctx.run([str(copy), "x"], env={"CTX_OUTPUT": "text"})
    assert done.returncode == 127
    assert "copy" in done.stderr


def test_large_output_is_exact(ctx: Ctx) -> None:
    text = "".join(f"line {index} äöü€𝄞\n" for index in range(200_000))
    (ctx.work / "large").write_text(text)
    assert ctx.call("fs.read", "large").output == text
    done = ctx.run([ctx.tool("fs.read"), "large"], env={"CTX_OUTPUT": "text"})
    assert done.stdout == text


def test_the_log_has_one_line_a_run_and_no_content(ctx: Ctx) -> None:
    # abi.md 3.18
    answer = ctx.call("show.types", "hush-hush")
    log = (ctx.root / "tool" / "show.types.d" / "log").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    mine = [line for line in lines if line["run"] == answer.frames[0]["run"]]
    assert len(mine) == 1
    assert mine[0]["status"] == "ok"
    assert mine[0]["uid"] == os.getuid()
    assert mine[0]["source"] == "exec"
    assert mine[0]["bytes_out"] == len(answer.output)
    assert "hush-hush" not in log
