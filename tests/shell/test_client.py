"""The blocking client against a server on a real Unix socket (docs/client.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.client import Conversation, Failed, text
from cortexfs.core import frames
from cortexfs.core.requests import Ping, Send
from tests.core.conversation_pair import kinds
from tests.shell.client_server import Served, served

ANSWERED = "start message delta delta message usage done"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "echo.sock") as server:
        yield server


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Served]:
    """A server whose runs say what the test makes them say."""
    with served(tmp_path / "slow.sock", echo=False) as server:
        yield server


def test_send_gives_the_frames_of_its_run_up_to_done(server: Served) -> None:
    with Conversation(server.path) as conversation:
        stream = conversation.send("hello there")
        heard = list(stream)
    assert kinds(heard) == ANSWERED
    assert (stream.run, stream.last) == (heard[0].run, "7")


def test_text_joins_the_answer(server: Served) -> None:
    with Conversation(server.path) as conversation:
        assert text(conversation.send("hello there")) == "hellothere"


def test_requests_that_overlap_do_not_mix(server: Served) -> None:
    # abi.md 5: "A client may hold one connection for many requests, also overlapping ones."
    with Conversation(server.path) as conversation:
        first = conversation.send("a b", session="one")
        second = conversation.send("c", session="two")
        assert conversation.ping() > 0
        assert [text(second), text(first)] == ["c", "ab"]


def test_cancel_says_how_the_run_ended(slow: Served) -> None:
    with Conversation(slow.path) as conversation:
        stream = conversation.send("hello")
        assert isinstance(next(stream), frames.Start)
        assert conversation.cancel(str(stream.run)).status == "cancelled"
        assert kinds(list(stream)) == "message done"
        with pytest.raises(Failed, match="EALREADY"):
            conversation.cancel(str(stream.run))
        with pytest.raises(Failed, match="ENOENT"):
            conversation.cancel("nobody")


def test_low_level_requests(server: Served) -> None:
    with Conversation(server.path) as conversation:
        conversation.request(Ping(id="p"))
        conversation.request(Send(input="x"))
        everything = conversation.frames()
        assert kinds([next(everything) for _ in range(7)]) == "pong start message delta message usage done"
