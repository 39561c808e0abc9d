"""The client with a real mount: conversations, exec, and a daemon that is killed (docs/client.md)."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs import client
from cortexfs.client import Conversation, Failed, run, text
from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame
from tests.core.conversation_pair import kinds, texts
from tests.mounted.ctx_mount import Ctx, mounted, wait_gone
from tests.waiting import PATIENCE

ECHO, SCRIPT = "model/debug/echo", "model/debug/script"


@pytest.fixture(autouse=True)
def root(ctx: Ctx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTX_ROOT", str(ctx.root))


@pytest.fixture
def victim(python: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctx]:
    """A mount whose daemon may be killed."""
    with mounted(python) as mount:
        monkeypatch.setenv("CTX_ROOT", str(mount.root))
        yield mount


def restart(mount: Ctx) -> None:
    pid = mount.pid
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    mount.mount()


def steps(*what: dict[str, object]) -> str:
    return json.dumps(what)


def test_sends_overlap(root: None) -> None:
    with Conversation(ECHO) as conversation:
        streams = {n: conversation.send(f"number {n}", session=f"client-{n}") for n in range(8)}
        assert conversation.ping() > 0
        assert {n: text(stream) for n, stream in reversed(streams.items())} == {
            n: f"number {n}" for n in range(8)
        }


def test_a_run_is_cancelled(root: None) -> None:
    # abi.md 5.26
    with Conversation(SCRIPT) as conversation, Conversation(SCRIPT) as other:
        stream = conversation.send(steps({"delta": "so far"}, {"hang": True}), session="client-cancel")
        heard = list(itertools.islice(stream, 3))
        assert other.cancel(str(stream.id)).status == "cancelled"
        assert kinds([*heard, *stream]).startswith("start message delta")
        with pytest.raises(Failed, match="EALREADY"):
            other.cancel(str(stream.run))


def test_a_call_is_approved(root: None) -> None:
    with Conversation(SCRIPT) as conversation:
        script = steps({"approval": {"name": "fs.write", "input": {}, "call": "c"}})
        stream = conversation.send(script, session="client-approve")
        asked = next(frame for frame in stream if isinstance(frame, frames.Approval))
        conversation.approve(str(asked.run), "c", "allow_once", {"path": "y"})
        assert text(stream) == 'allow_once {"path":"y"}'


def test_a_refusal_is_told(root: None) -> None:
    with Conversation(ECHO) as conversation:
        with pytest.raises(Failed, match="ENOENT"):
            text(conversation.send("x", cwd="/nothing/here"))
        with pytest.raises(Failed, match="EINVAL"):
            text(conversation.send("x", session="a/b"))
        assert text(conversation.send("x", scope="temp")) == "x"


def test_the_same_id_is_said_once(root: None) -> None:
    # abi.md 5.14
    with Conversation(ECHO) as first, Conversation(ECHO) as second:
        said = [list(each.send("x", id="once", session="client-once")) for each in (first, second)]
    assert said[0] == said[1]
    assert kinds(said[0])[:13] == "start message"


def test_a_burst_is_read_whole(root: None) -> None:
    with Conversation(SCRIPT) as conversation:
        assert len(text(conversation.send(steps({"burst": 20_000, "size": 32}), scope="temp"))) == 640_000


def test_models_and_tools_are_run(root: None) -> None:
    assert text(run(ECHO, "hello there")) == "hello there"
    assert text(run(ECHO, input="by standard input")) == "by standard input"
    assert text(run("tool/text.word_count", "one two three")) == "3 words"
    with run(SCRIPT, steps({"delta": "x"}, {"hang": True})) as running:
        assert kinds(list(itertools.islice(running, 2))) == "start delta"
    with pytest.raises(Failed, match="EIO: on purpose") as caught:
        text(run(SCRIPT, steps({"error": {"code": "EIO", "message": "on purpose"}})))
    assert caught.value.run


def test_what_is_not_there(root: None) -> None:
    for path in ("model/debug/nobody", "tool/fs.read", "/nothing/here"):
        with pytest.raises(Failed, match="ENOENT"):
            Conversation(path)


def test_a_session_is_followed_over_the_end_of_a_daemon(victim: Ctx) -> None:
    # abi.md 5.18
    heard: list[AnyFrame] = []
    followed = threading.Event()  # before the first connection, a missing daemon is an error at once

    def follow() -> None:
        for frame in client.resume(ECHO, pauses=[0.05] * 400):
            heard.append(frame)
            followed.set()
            if isinstance(frame, frames.Delta) and frame.text == "last":
                return

    thread = threading.Thread(target=follow)
    assert text(client.send(ECHO, "first")) == "first"
    thread.start()
    assert followed.wait(PATIENCE)
    for word in ("second", "last"):
        restart(victim)
        assert text(client.send(ECHO, word)) == word
    thread.join(PATIENCE)
    assert texts(heard) == ["first", "second", "last"]
    numbers = [int(frame.id or 0) for frame in heard]
    assert numbers == sorted(set(numbers))


def test_a_run_that_a_daemon_did_not_end(victim: Ctx) -> None:
    # abi.md 5.30
    stream = client.send(SCRIPT, steps({"delta": "so far"}, {"hang": True}), pauses=[0.05] * 400)
    heard = list(itertools.islice(stream, 3))
    restart(victim)
    heard += stream
    assert kinds(heard) == "start message delta error done"
    assert isinstance(heard[-1], frames.Done)
    assert heard[-1].code == "EIO"


def test_a_daemon_that_is_gone(victim: Ctx) -> None:
    with Conversation(SCRIPT) as conversation:
        stream = conversation.send(steps({"hang": True}))
        next(stream)
        pid = victim.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Failed, match="EHOSTDOWN"):
            list(stream)
        wait_gone(pid)
    for reach in (Conversation, run):
        with pytest.raises(Failed, match=r"EHOSTDOWN: .*see: ctx status|with: ctx mount"):
            reach(ECHO)
