"""Models that a plugin provides, on a real mount (issue: "Plugins can provide models")."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.agents import agent
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.talking import one_run, said, talk, text, types
from tests.waiting import until

PARROT, MIRROR, WAITING, BAD = (f"fixture/{name}" for name in ("parrot", "mirror", "waiting", "bad"))


@pytest.fixture(scope="module")
def own(python: Path) -> Iterator[Ctx]:
    with mounted(python, ["modeller"]) as ctx:
        yield ctx


def ask(ctx: Ctx, name: str, given: object, **options: Any) -> Answer:
    words = given if isinstance(given, str) else json.dumps(given)
    return Answer(ctx.run([str(ctx.root / "model" / name), words], text=False, **options))


def sock(name: str) -> str:
    return f"model/{name}.sock"


def test_it_answers_as_every_model_does(own: Ctx) -> None:
    answer = ask(own, PARROT, "to be or not")
    assert answer.status == 0, answer
    assert answer.output == "to be or not"
    assert answer.types == ["start", "reasoning_delta", *["delta"] * 4, "message", "usage", "done"]
    assert answer.frames[0]["model"] == PARROT
    assert answer.frames[-3]["content"] == [{"type": "text", "text": "to be or not"}]
    assert (answer.frames[-2]["input_tokens"], answer.frames[-2]["output_tokens"]) == (1, 4)


def test_its_control_files_tell_the_truth(own: Ctx) -> None:
    controls = own.root / "model" / f"{PARROT}.d"
    shown = {
        name: (controls / name).read_text() for name in ("id", "driver", "cap", "limit", "session", "origin")
    }
    assert shown == {
        "id": f"{PARROT}\n",
        "driver": "plugin\n",
        "cap": "chat\nstream\nsession\ntool_call_syntax\n",
        "limit": "4096\n",
        "session": "socket\n",
        "origin": "plugin:modeller@1.0\n",
    }
    assert "Says again what it hears" in (own.root / "model" / PARROT).read_text()
    ask(own, PARROT, "one two")
    last = json.loads((controls / "log").read_text().splitlines()[-1])
    assert (last["status"], last["output_tokens"], last["uid"]) == ("ok", 2, os.getuid())
    assert own.call("fixture.beside").output == "here"  # tools of the same plugin still work


def test_what_it_is_asked_is_what_was_given(own: Ctx) -> None:
    # docs/sdk.md, ModelRequest
    default = own.root / "model" / f"{MIRROR}.d" / "default"
    default.write_text("temperature=0.5\ntop_p=1\n")
    tool = {"name": "fs.read", "description": "Read.", "schema": {"type": "object"}}
    given = {
        "system": "be terse",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "https://x.example/a"}]},
            {"role": "assistant", "tool_calls": [{"call": "c", "name": "fs.read", "input": {"path": "p"}}]},
            {"role": "tool", "call": "c", "content": "text", "is_error": True},
        ],
        "tools": [tool],
        "temperature": 0,
        "effort": "low",
    }  # fmt: skip
    try:
        seen = json.loads(ask(own, MIRROR, given).output)
    finally:
        default.unlink()
    assert seen["system"] == "be terse"
    assert seen["parameters"] == {"temperature": 0, "top_p": 1}
    assert seen["effort"] == "low"
    assert seen["tools"] == [["fs.read", "Read.", {"type": "object"}]]
    first, second, third = seen["messages"]
    assert (first["text"], first["media"]) == ("a", [["image", "", "", "https://x.example/a", ""]])
    assert second["calls"] == [["c", "fs.read", {"path": "p"}]]
    assert (third["call"], third["text"], third["is_error"]) == ("c", "text", True)


def test_effort_counts_for_the_next_call(own: Ctx) -> None:
    # issue 4: "Writing default, effort, fallback takes effect on the next call"
    effort = own.root / "model" / f"{MIRROR}.d" / "effort"
    effort.write_text("high\n")
    try:
        assert json.loads(ask(own, MIRROR, {"input": "x"}).output)["effort"] == "high"
        effort.write_text("low\n")
        assert json.loads(ask(own, MIRROR, {"input": "x"}).output)["effort"] == "low"
    finally:
        effort.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_it_runs_as_the_caller(own: Ctx) -> None:
    # abi.md 4.35
    seen = json.loads(ask(own, MIRROR, "x", uid=NOBODY).output)
    assert seen["who"] == [NOBODY, NOBODY, str(own.work), "model"]


def test_structured_output_is_checked(own: Ctx) -> None:
    schema = {"type": "object", "required": ["messages"]}
    assert ask(own, MIRROR, {"input": "x", "schema": schema}).status == 0
    answer = ask(own, MIRROR, {"input": "x", "schema": {**schema, "required": ["nothing"]}})
    assert (answer.status, answer.code) == (1, "EBADMSG"), answer
    assert "message" not in answer.types


def test_a_tool_call_is_said_and_not_made(own: Ctx) -> None:
    # issue: "A model never executes a tool"
    tools = [{"name": "fs.read", "description": "Read.", "schema": {"type": "object"}}]
    answer = ask(own, PARROT, {"input": "go", "tools": tools})
    call = next(frame for frame in answer.frames if frame["type"] == "tool_call")
    assert (call["call"], call["name"], call["input"]) == ("c1", "fs.read", {"path": "README.md"})
    assert "tool_result" not in answer.types


def test_a_large_prompt(own: Ctx) -> None:
    answer = Answer(own.run([str(own.root / "model" / MIRROR), "-"], input=b"word " * 200_000, text=False))
    assert answer.status == 0
    assert json.loads(answer.output)["messages"][0]["text"].count("word ") == 200_000


def test_an_agent_works_with_it(own: Ctx) -> None:
    # issue: "An agent is its `.d/`: model, ..."
    own.ctx("agent", "new", "birdwatcher", "--model", PARROT, "--tools", "text.word_count")
    try:
        answer = Answer(own.run([str(own.root / "agent" / "birdwatcher"), "count"], text=False))
        calls = [frame["name"] for frame in answer.frames if frame["type"] == "tool_call"]
        assert calls, answer
        assert set(calls) == {"text.word_count"}
        assert answer.types[-1] == "done"
    finally:
        own.ctx("agent", "rm", "birdwatcher", "--yes")


# -- conversations


def test_a_session_has_its_history(own: Ctx) -> None:
    for number in (1, 2, 3):
        frames = said(own, f"message {number}", sock(PARROT), session="counted")
        one_run(frames)
        assert text(frames) == f"message {number}"
        usage = next(frame for frame in frames if frame["type"] == "usage")
        assert usage["input_tokens"] == 2 * number - 1


def test_cancelling_on_a_socket(own: Ctx) -> None:
    # abi.md 5.26
    with talk(own, sock(WAITING)) as client:
        client.send("x", session="cancelled", id="m")
        client.until("progress")
        client.ask("cancel", id="m")
        done = client.until("done")[-1]
    assert done["status"] == "cancelled"
    assert text(said(own, "again", sock(PARROT))) == "again"


def test_cancelling_by_a_signal(own: Ctx) -> None:
    runner = subprocess.Popen(
        [str(own.root / "model" / WAITING), "x"], stdout=subprocess.PIPE, env=own.environ
    )
    with runner:
        assert runner.stdout
        while b"progress" not in runner.stdout.readline():
            pass
        runner.send_signal(signal.SIGINT)
        assert b'"cancelled"' in runner.stdout.read()
        assert runner.wait() == 130


# -- faults


@pytest.mark.parametrize(
    ("does", "code", "status", "words", "output"),
    [
        ("raise", "EPROTO", 70, "the model failed: ZeroDivisionError", ""),
        ("garbage", "EPROTO", 70, "yielded int; only str or Reasoning or ToolCall or Usage", "so far"),
        ("doubled", "EPROTO", 70, "the model repeated the id of a tool call", ""),
        ("negative", "EPROTO", 70, "-1", ""),
        ("raw", "EPROTO", 70, "broke the protocol", ""),
        ("forged", "EPROTO", 70, "broke the protocol", ""),
        ("deep", "EPROTO", 70, "nested", ""),
        ("crash", "EPROTO", 70, "the model's process was killed by SIGSEGV", "last words"),
        ("asleep", "ETIMEDOUT", 1, "did not end within 2 s", "asleep"),
        ("flood", "EFBIG", 1, "over 8 million", None),
        ("busy", "EAGAIN", 1, "the far end said no", ""),
        ("cancelled", "EIO", 1, "the far end said no", ""),
    ],
)
def test_a_fault_is_its_own(
    own: Ctx, does: str, code: str, status: int, words: str, output: str | None
) -> None:
    answer = ask(own, BAD, does)
    assert (answer.status, answer.code) == (status, code), answer
    assert words in answer.message
    assert output is None or answer.output == output
    assert answer.types[-2:] == ["error", "done"]
    assert "message" not in answer.types
    assert ask(own, PARROT, "still here").output == "still here"  # the host may be a new one


def test_faults_on_a_socket_and_its_session_after_them(own: Ctx) -> None:
    for does in ("crash", "garbage", "raise"):
        frames = said(own, does, sock(BAD), session="faulty")
        assert types(frames)[-2:] == ["error", "done"]
        assert frames[-1]["status"] == "error"
    frames = said(own, "well", sock(BAD), session="faulty")
    assert text(frames) == "well"
    assert types(frames)[-2:] == ["message", "done"]


def test_the_fallback_of_one_that_is_busy(own: Ctx) -> None:
    fallback = own.root / "model" / f"{BAD}.d" / "fallback"
    fallback.write_text(f"{PARROT}\n")
    try:
        answer = ask(own, BAD, "busy")
        assert (answer.status, answer.output) == (0, "busy"), answer
        assert [frame["message"] for frame in answer.frames if frame["type"] == "progress"]
        assert ask(own, BAD, "garbage").code == "EPROTO"
    finally:
        fallback.unlink()


@pytest.mark.parametrize(
    ("plugin", "words"), [("pretender", "debug has its own models"), ("nameless", "parrot")]
)
def test_a_name_that_it_may_not_take(own: Ctx, plugin: str, words: str) -> None:
    # abi.md 2.3, and what is there is nobody else's
    own.ctx("plugin", "enable", plugin, check=False)
    try:
        assert words in own.status["broken plugin"]
        assert ask(own, "debug/echo", "x").output == "x"
        assert ask(own, PARROT, "x").output == "x"
    finally:
        own.ctx("plugin", "disable", plugin)


def test_an_agent_that_lacks_it_is_refused(own: Ctx) -> None:
    # abi.md 5.6
    with agent(own, "parrots", "fs.read", model=PARROT) as path:
        own.ctx("plugin", "disable", "modeller")
        try:
            until(lambda: _refuses(own.root / f"{path}.sock"))
            assert (own.root / f"{path}.sock").is_socket()
        finally:
            own.ctx("plugin", "enable", "modeller")
        until(lambda: not _refuses(own.root / f"{path}.sock"))
        with talk(own, f"{path}.sock") as talker:
            assert talker.is_alive()


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == errno.ECONNREFUSED


def test_it_goes_with_its_plugin(own: Ctx) -> None:
    own.ctx("plugin", "disable", "modeller")
    try:
        assert not (own.root / "model" / "fixture").exists()
        assert not (own.root / sock(PARROT)).exists()
    finally:
        own.ctx("plugin", "enable", "modeller")
    assert ask(own, PARROT, "back").output == "back"
