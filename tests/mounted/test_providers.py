"""Providers from a user's point of view, with servers of other authors (issue: "Real HTTP")."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted import outside
from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.mounted.outside import KEY

SCHEMA = {
    "type": "object",
    "properties": {"animal": {"type": "string", "enum": ["cat", "dog"]}},
    "required": ["animal"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with outside.katan() as address:
        yield address


@pytest.fixture(scope="module")
def own(python: Path, url: str) -> Iterator[Ctx]:
    """A mount with two providers at one server, both added while the daemon runs."""
    with mounted(python) as ctx:
        add(ctx, "katan", f"{url}/v1", "openai.chat")
        add(ctx, "claude", url, "anthropic.messages", "--model", "echo-1")
        yield ctx


def add(ctx: Ctx, name: str, url: str, format_: str, *more: str, key: str = KEY) -> None:
    ctx.ctx("provider", "add", name, "--base-url", url, "--format", format_, *more)
    if key:
        secret(ctx, name, key)


def secret(ctx: Ctx, name: str, key: str, check: bool = True) -> Any:
    words = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "provider", "secret", "set", name]
    done = ctx.run(words, input=key + "\n")
    assert not check or done.returncode == 0, done.stderr
    assert key not in done.stdout + done.stderr
    return done


def ask(ctx: Ctx, name: str, *words: str, **options: Any) -> Answer:
    return Answer(ctx.run([str(ctx.root / "model" / name), *words], text=False, **options))


def control(ctx: Ctx, name: str, control_: str) -> Path:
    return ctx.root / "model" / f"{name}.d" / control_


# -- answers


@pytest.mark.parametrize("name", ["katan/echo-1", "claude/echo-1"])
def test_a_model_of_a_provider_answers(own: Ctx, name: str) -> None:
    # issue: "Real HTTP: against at least two independent OpenAI-compatible servers"
    answer = ask(own, name, "hello", "there")
    assert answer.status == 0, answer
    assert "User: hello there" in answer.output
    assert answer.types[0] == "start"
    assert answer.types.count("delta") > 3
    assert answer.types[-3:] == ["message", "usage", "done"]
    assert answer.frames[-3]["content"][0]["text"] == answer.output


def test_what_git_diff_pipes_is_appended(own: Ctx) -> None:
    # issue: 'so `git diff | /ctx/model/main "write a commit message" -` works'
    (own.root / "model" / "main").unlink(missing_ok=True)
    (own.root / "model" / "main").symlink_to("katan/echo-1")
    answer = ask(own, "main", "write a commit message", "-", input=b"+a line\n")
    assert "User: write a commit message\n\n+a line" in answer.output


def test_the_control_files_tell_the_truth(own: Ctx) -> None:
    # issue: "truthful .d/ files: cap, limit (from the provider's listing, or "unknown") ..."
    shown = {
        name: control(own, "katan/echo-1", name).read_text()
        for name in ("id", "driver", "cap", "effort", "default", "fallback", "limit", "session", "origin")
    }
    assert shown == {
        "id": "echo-1\n",
        "driver": "openai.chat\n",
        "cap": "chat\nstream\nsession\ntool_call_syntax\n",  # tested by calls, as the server lists none
        "effort": "auto\n",
        "default": "",
        "fallback": "",
        "limit": "unknown\n",
        "session": "socket\n",
        "origin": "provider:katan\n",
    }
    log = control(own, "katan/echo-1", "log")
    before = len(log.read_text().splitlines())
    ask(own, "katan/echo-1", "hi")
    last = json.loads(log.read_text().splitlines()[before])
    assert last["input_tokens"] > 0
    assert last["status"] == "ok"


def test_default_counts_for_the_next_call(own: Ctx) -> None:
    # issue: "Writing default, effort, fallback takes effect on the next call"
    default = control(own, "katan/echo-1", "default")
    default.write_text("max_tokens=77\ntemperature=0.25\n")
    try:
        assert "max_tokens=77 temperature=0.25" in ask(own, "katan/echo-1", "x").output
        given = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5})
        assert "max_tokens=5 temperature=0.25" in ask(own, "katan/echo-1", given).output
    finally:
        default.unlink()
    assert "max_tokens=77" not in ask(own, "katan/echo-1", "x").output


def test_a_session_s_history_is_sent_as_messages(own: Ctx) -> None:
    # issue: "sessions with history sent as real messages"
    for number, name in enumerate(("katan/echo-1", "katan/echo-1", "claude/echo-1", "claude/echo-1")):
        done = own.ctx("send", "--session", "counted", f"model/{name}", f"message {number}")
        assert f"messages={1 + 2 * (number % 2)} " in done.stdout, done.stdout


def test_a_model_of_one_s_own(own: Ctx) -> None:
    # abi.md 1.23
    own.ctx("model", "new", "katan/coder", "--from", "katan/echo-1", "--set", "max_tokens=33")
    assert control(own, "katan/coder", "id").read_text() == "echo-1\n"
    assert control(own, "katan/coder", "default").read_text() == "max_tokens=33\n"
    assert not (own.root / "model" / "katan" / "coder").is_symlink()
    assert "max_tokens=33" in ask(own, "katan/coder", "x").output
    own.ctx("model", "new", "katan/terse", "--from", "katan/echo-1", "--set", "system=be terse")
    assert "messages=2" in ask(own, "katan/terse", "x").output  # the system message, and the user's
    again = own.ctx("model", "new", "katan/coder", "--from", "katan/echo-1", check=False)
    assert again.returncode == 1
    assert "already" in again.stderr
    wrong = own.ctx("model", "new", "katan/x", "--from", "katan/nothing", check=False)
    assert "no provider has a model katan/nothing" in wrong.stderr


def test_listing_and_testing(own: Ctx) -> None:
    rows = json.loads(own.ctx("provider", "list", "--json").stdout)
    assert [(row["name"], row["format"], row["status"]) for row in rows[:2]] == [
        ("katan", "openai.chat", "kept"),
        ("claude", "anthropic.messages", "kept"),
    ]
    models = json.loads(own.ctx("provider", "models", "katan", "--refresh", "--json").stdout)
    assert "katan/echo-1" in [row["model"] for row in models]
    assert "answers with its key" in own.ctx("provider", "test", "katan").stderr


# -- failures


def test_no_key_and_a_wrong_key(own: Ctx, url: str) -> None:
    # issue: "no key or bad key EACCES (13) with what to do"
    add(own, "keyless", f"{url}/v1", "openai.chat", "--model", "echo-1", key="")
    answer = ask(own, "keyless/echo-1", "x")
    assert (answer.status, answer.code) == (13, "EACCES")
    assert "ctx provider secret set keyless" in answer.message
    wrong = "sk-wrong-0123456789abcdef"
    secret(own, "keyless", wrong)
    answer = ask(own, "keyless/echo-1", "x")
    assert (answer.status, answer.code) == (13, "EACCES")
    assert "refuses its key" in answer.message
    assert wrong not in repr(answer)
    done = own.ctx("provider", "test", "keyless", check=False)
    assert done.returncode == 13
    assert wrong not in done.stderr
    secret(own, "keyless", KEY)  # takes effect without a restart
    assert ask(own, "keyless/echo-1", "x").status == 0
    own.ctx("provider", "remove", "keyless")
    assert not (own.root / "model" / "keyless").exists()
    assert not (own.state / "secrets" / "keyless").exists()


def test_an_unreachable_server_and_the_fallback(own: Ctx) -> None:
    # issue: "then the fallback chain when set, each hop told in a progress frame"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        add(
            own,
            "gone",
            f"http://127.0.0.1:{unused.getsockname()[1]}/v1",
            "openai.chat",
            "--model",
            "m",
            key="",
        )
        answer = ask(own, "gone/m", "x")
        assert (answer.status, answer.code) == (69, "EHOSTDOWN")
        assert "connection refused" in answer.message
        control(own, "gone/m", "fallback").write_text("katan/echo-1\n")
        answer = ask(own, "gone/m", "still here")
        assert answer.status == 0
        assert "User: still here" in answer.output
        told = [frame["message"] for frame in answer.frames if frame["type"] == "progress"]
        assert told[-1].endswith("asking katan/echo-1 instead of gone/m")
    own.ctx("provider", "remove", "gone")


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        (["--error-rate", "1"], "EREMOTEIO", 1),
        (["--rate-limit-after", "1"], "EAGAIN", 1),
        (["--timeout-after", "1"], "EREMOTEIO", 1),
    ],
)
def test_what_an_outside_server_fails_with(own: Ctx, options: list[str], code: str, status: int) -> None:
    with outside.katan(*options) as address:
        add(own, "failing", f"{address}/v1", "openai.chat", "--model", "failing")
        ask(own, "failing/failing", "x")
        answer = ask(own, "failing/failing", "x")
        assert (answer.status, answer.code) == (status, code), answer
        own.ctx("provider", "remove", "failing")


def test_a_broken_file_is_told_and_the_others_work(own: Ctx) -> None:
    file = own.config / "providers" / "odd.toml"
    file.write_text('base_url = "https://x.example"\nformat = "openai.chta"\n')
    own.ctx("provider", "models", "katan", "--refresh")  # makes the daemon read the file again
    assert "format" in own.status["broken provider"]
    listed = own.ctx("provider", "list").stdout
    assert "broken" in listed
    assert ask(own, "katan/echo-1", "x").status == 0
    file.unlink()


# -- secrets


def test_a_key_is_nowhere_but_in_its_file(own: Ctx) -> None:
    # issue: "No secret in any frame, log, .d/ file, argv, environment of a child"
    secrets = own.state / "secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert stat.S_IMODE((secrets / "katan").stat().st_mode) == 0o600
    holders = []
    for top in (own.state, own.config):
        for path in top.rglob("*"):
            if path.is_file() and not path.is_socket() and KEY.encode() in path.read_bytes():
                holders.append(str(path.relative_to(top)))
    assert sorted(holders) == ["secrets/claude", "secrets/katan"]
    for path in own.root.glob("model/*/*.d/*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes()
    for process in Path("/proc").glob("[0-9]*"):
        with_parts = (process / "cmdline", process / "environ")
        for part in with_parts:
            try:
                text = part.read_bytes()
            except OSError:
                continue
            if KEY.encode() in text:  # servers of the tests get their keys so, in other lanes too
                words = (process / "cmdline").read_bytes()
                assert b"llm-katan" in words or b"import sys, threading, xllamacpp" in words


def test_a_key_from_a_variable_of_the_daemon_or_a_command(python: Path, url: str) -> None:
    # issue: "or by reference to a command or an environment variable of the *daemon*"
    with mounted(python) as ctx:
        ctx.umount()
        ctx.environ |= {"KATAN_KEY": KEY, "OTHER_KEY": "not-for-the-daemon"}
        more = ("--model", "echo-1")
        add(ctx, "byenv", f"{url}/v1", "openai.chat", "--key-env", "KATAN_KEY", *more, key="")
        add(ctx, "bycommand", f"{url}/v1", "openai.chat", "--key-command", f"echo {KEY}", *more, key="")
        ctx.mount()
        assert ask(ctx, "byenv/echo-1", "x").status == 0
        assert ask(ctx, "bycommand/echo-1", "x").status == 0
        environ = Path(f"/proc/{ctx.pid}/environ").read_bytes()
        assert b"OTHER_KEY" not in environ
        children = [
            status.parent
            for status in Path("/proc").glob("[0-9]*/status")
            if f"\nPPid:\t{ctx.pid}\n" in _text(status)
        ]
        assert children
        for child in children:
            assert KEY.encode() not in (child / "environ").read_bytes()
        refused = secret(ctx, "byenv", "another-key", check=False)
        assert refused.returncode == 2


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# -- llama.cpp's server


@pytest.fixture(scope="module")
def llama(own: Ctx) -> Iterator[Ctx]:
    weights = outside.weights()
    if weights is None:
        pytest.skip("neither weights nor engine are installed: ctx provider add-local")
    with outside.llama(weights) as address:
        for name, format_, base in (
            ("chat", "openai.chat", f"{address}/v1"),
            ("responses", "openai.responses", f"{address}/v1"),
            ("messages", "anthropic.messages", address),
        ):
            add(own, f"llama-{name}", base, format_, "--model", "smollm2")
        yield own


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_llama_cpp_in_three_formats(llama: Ctx, name: str) -> None:
    given = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0}
    answer = ask(llama, f"llama-{name}/smollm2", json.dumps(given))
    assert answer.status == 0, answer
    assert answer.output
    assert answer.types[-1] == "done"
    usage = next(frame for frame in answer.frames if frame["type"] == "usage")
    assert 0 < usage["output_tokens"] <= 12


def test_structured_output_of_a_real_model(llama: Ctx) -> None:
    # issue: "schema (structured output, validated)"
    given = {"input": "What says woof?", "schema": SCHEMA, "max_tokens": 40, "temperature": 0}
    answer = ask(llama, "llama-chat/smollm2", json.dumps(given))
    assert answer.status == 0, answer
    assert json.loads(answer.output)["animal"] in ("cat", "dog")


def test_a_context_overflow_tells_both_numbers(llama: Ctx) -> None:
    # issue: "context overflow EMSGSIZE with both numbers"
    answer = ask(llama, "llama-chat/smollm2", "-", input=b"word " * 5000)
    assert (answer.status, answer.code) == (2, "EMSGSIZE"), answer
    assert "takes 2048" in answer.message
    assert any(5000 <= int(word) < 6000 for word in answer.message.split() if word.isdecimal())


def test_the_limit_is_what_the_server_lists(llama: Ctx) -> None:
    llama.ctx("provider", "models", "llama-chat", "--refresh")
    assert control(llama, "llama-chat/smollm2", "limit").read_text() in ("2048\n", "8192\n")
