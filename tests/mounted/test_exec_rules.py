"""Rules of exec that hold for every object, and for the schema of every built-in tool (abi.md 4)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.agents import agent, call, script
from tests.mounted.ctx_mount import Answer, Ctx
from tests.mounted.test_models import on_a_terminal
from tests.runner.conftest import DEBUG, build
from tests.waiting import PATIENCE, until

HANG = '[{"delta":"begun"},{"hang":true}]'
BUILT_IN = (
    "fs.read fs.list fs.stat fs.glob fs.search fs.write fs.replace shell.exec text.word_count agent.run"
)


# -- a schema


def wrong(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields a refused value for each keyword of a property's schema."""
    for keyword, value in schema.items():
        match keyword, value:
            case "type", ("string" | "boolean" | "object" | "array"):
                yield keyword, 5
            case "type", ("integer" | "number"):
                yield keyword, "five"
            case "enum", _:
                yield keyword, "none of them"
            case "anyOf", [*_]:
                yield keyword, [[]]
                for inner in value:
                    if "additionalProperties" in inner:
                        yield "additionalProperties", {"x": 5}
            case "items", _:
                yield keyword, [{}]
            case "minimum", _:
                yield keyword, value - 1
            case (("description" | "default"), _):
                pass
            case _:
                raise AssertionError(f"say what {keyword}={value} refuses")


def violations(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields inputs that break the schema in one place, each with the name that the answer must contain."""
    right = dict.fromkeys(schema.get("required", []), "x")
    for name, inner in schema["properties"].items():
        for _, value in wrong(inner):
            yield name, right | {name: value}
    for name in right:
        yield name, {key: value for key, value in right.items() if key != name}
    if schema.get("additionalProperties") is False:
        yield "surplus", right | {"surplus": 1}


@pytest.mark.parametrize("name", BUILT_IN.split())
def test_what_a_schema_refuses(ctx: Ctx, name: str) -> None:
    # issue: "schema violations of every JSON Schema keyword used"; abi.md 4.15
    schema = json.loads((ctx.root / f"tool/{name}.d/schema").read_text())
    assert schema.keys() <= {"type", "properties", "required", "additionalProperties"}
    tried = list(violations(schema))
    assert len(tried) > len(schema["properties"])
    for said, value in tried:
        answer = ctx.call(name, input=json.dumps(value).encode())
        assert (answer.status, answer.code) == (2, "EINVAL"), (value, answer)
        assert said in answer.message, (value, answer)
        assert answer.types[-2:] == ["error", "done"]


def test_no_code_runs_for_a_wrong_input(ctx: Ctx) -> None:
    # abi.md 4.15; the tool's code ends
    # its host, which is EPROTO
    for wrong_ in ({"status": "x"}, {"state": 3}):
        answer = ctx.call("bad.exit", json.dumps(wrong_))
        assert (answer.status, answer.code) == (2, "EINVAL"), answer
    assert ctx.call("bad.exit", "--status", "4").code == "EPROTO"


@pytest.mark.parametrize(
    "word",
    [
        '{"text":' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"text":"x","count":1e999}',
        '{"text":"x","count":' + "9" * 5000 + "}",
        '{"text":"\\ud800"}',
        '{"text":"x"} {}',
        '{"text":"x",}',
        "{",
    ],
)
def test_an_argument_that_is_no_good_object(ctx: Ctx, word: str) -> None:
    # abi.md 4.7; issue: "deep JSON ..., huge numbers"
    answer = ctx.call("show.types", word)
    assert (answer.status, answer.code) == (2, "EINVAL"), answer
    assert len(answer.message) < 1000


# -- a terminal


def test_usage_goes_to_standard_error(ctx: Ctx) -> None:
    # abi.md 4.4, 4.5, wherever its output goes
    outer, inner = pty.openpty()
    try:
        done = ctx.run([ctx.tool("fs.read")], stdin=inner)
    finally:
        os.close(inner)
        os.close(outer)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: fs.read" in done.stderr


# -- signals


@pytest.mark.parametrize("name", ["tool/shell.exec", "model/debug/script"])
def test_the_second_interrupt_exits_at_once(fresh: Ctx, name: str) -> None:
    # abi.md 4.31
    words = ["echo begun; sleep 1000"] if name.startswith("tool") else [HANG]
    process = subprocess.Popen(
        [str(fresh.root / name), *words],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=fresh.environ,
        cwd=fresh.work,
    )
    daemon = fresh.pid
    try:
        assert process.stdout is not None
        while b"begun" not in process.stdout.readline():
            pass
        os.kill(daemon, signal.SIGSTOP)  # a stopped daemon sends no last frame
        process.send_signal(signal.SIGINT)
        _taken(process.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        os.kill(daemon, signal.SIGCONT)
        process.kill()
        process.communicate()
    assert fresh.call("text.word_count", "still there").output == "2 words"


def _taken(pid: int, number: signal.Signals) -> None:
    """Wait until a signal is no longer pending, as two pending signals of a kind are delivered as one."""
    until(lambda: not _pending(pid) & 1 << (number - 1))


def _pending(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")), 16)


def test_a_silent_run_that_nobody_reads_is_cancelled(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 4.22. The runner of this checkout: the system's may be an older one.
    runner = build(tmp_path / "runner", DEBUG)
    script = '"$1" "$2" "sleep 98764" | head -1 >/dev/null; echo ${PIPESTATUS[0]}'
    done = ctx.run(["bash", "-c", script, "bash", str(runner), ctx.tool("shell.exec")])
    assert (done.stdout, done.stderr) == ("141\n", "")
    until(lambda: not ctx.run(["pgrep", "-f", "sleep 98764"]).stdout)


def test_ctx_run_dies_of_a_closed_output_too(ctx: Ctx) -> None:
    # docs/commands.md: "exit status, standard input, signals and streaming are those of `/ctx/tool/fs.read`";
    # abi.md 4.22
    words = """'[{"burst":1000000}]'"""
    line = f"{ctx.python} -I -m cortexfs.cli.main run debug/script {words}"
    done = ctx.run(["bash", "-c", f"{line} | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"])
    assert (done.stdout, done.stderr) == ("141\n", "")


# -- agents, as models and tools


def test_an_agents_help_and_prompts(ctx: Ctx) -> None:
    # abi.md 4.14, 4.12, 4.13
    with agent(ctx, "prompted", "fs.read") as path:
        program = str(ctx.root / path)
        done = ctx.run([program, "--help"])
        assert (done.returncode, done.stderr) == (0, "")
        assert "usage: prompted PROMPT..." in done.stdout
        steps = '[{"delta": "two words"}]'
        task = json.dumps({"task": steps})
        for words, stdin in ((steps.split(), b""), ([], steps.encode()), ([task], b""), ([], task.encode())):
            answer = Answer(ctx.run([program, *words], input=stdin, text=False))
            assert (answer.status, answer.output) == (0, "two words"), answer
        empty = Answer(ctx.run([program], input=b"", text=False))
        assert (empty.status, empty.code) == (2, "EINVAL")
        assert empty.types[-2:] == ["error", "done"]


def test_an_agent_reads_what_is_typed_when_its_output_goes_elsewhere(ctx: Ctx) -> None:
    # abi.md 4.6
    with agent(ctx, "typed", "fs.read") as path, open(ctx.work / "typed", "w+b") as out:
        status, _ = on_a_terminal(ctx, [str(ctx.root / path)], b'[{"delta":"heard"}]\n\x04', stdout=out)
        out.seek(0)
        assert (status, b'"text":"heard"' in out.read()) == (0, True)


def test_exec_writes_no_session(fresh: Ctx) -> None:
    # abi.md 4.33
    with agent(fresh, "brief", "text.word_count") as path:
        assert fresh.run([str(fresh.root / "model/debug/echo"), "hello"]).returncode == 0
        task = script(call("text.word_count", text="a b"), {"delta": "done"})
        answer = Answer(fresh.run([str(fresh.root / path), task], text=False))
        assert answer.status == 0, answer
        assert fresh.call("text.word_count", "hello").status == 0
        fresh.umount()
        fresh.mount()
        assert json.loads(fresh.ctx("session", "list", "--json").stdout) == []
        kept = [*_folders(fresh.state / "sessions"), *_folders(fresh.root / "home")]
        assert [each for each in kept if each.name == "session"] == []


def _folders(top: Path) -> Iterator[Path]:
    return (Path(folder, name) for folder, names, _ in os.walk(top) for name in names)
