"""The Trio half of the client against a server on a real Unix socket (docs/client.md)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.client import Failed, sorting
from cortexfs.client.trio import Conversation, resume, run, send, text
from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.requests import Ping, Send
from tests.core.conversation_pair import kinds, texts
from tests.shell import client_server
from tests.shell.client_server import Served

ANSWERED = "start message delta delta message usage done"

server, slow = client_server.server, client_server.slow


async def taken(stream: AsyncIterator[AnyFrame], count: int = 1 << 30) -> list[AnyFrame]:
    """The next frames, as many as these or all."""
    found = []
    for _ in itertools.repeat(None, count):
        try:
            found.append(await anext(stream))
        except StopAsyncIteration:
            break
    return found


async def ping_on(conversation: Conversation) -> None:
    while True:
        await conversation.ping()


async def test_send_gives_the_frames_of_its_run_up_to_done(server: Served) -> None:
    async with Conversation(server.path) as conversation:
        stream = conversation.send("hello there")
        assert kinds(await taken(stream)) == ANSWERED
        assert (stream.last, await conversation.ping() >= 0) == ("7", True)


async def test_tasks_share_a_conversation(server: Served) -> None:
    # abi.md 5: "A client may hold one connection for many requests, also overlapping ones."
    answers: dict[int, str] = {}

    async def ask(number: int) -> None:
        for turn in range(20):
            answer = await text(conversation.send(f"{number} {turn}", session=f"s{number}"))
            answers[number] = answers.get(number, "") + answer + ";"

    async with Conversation(server.path) as conversation, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(ask, number)
    assert answers == {n: "".join(f"{n}{turn};" for turn in range(20)) for n in range(5)}


async def test_cancelling_who_waits_leaves_the_conversation_as_it_was(slow: Served) -> None:
    async with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        assert kinds(await taken(stream, 2)) == "start message"
        with trio.move_on_after(0):
            await anext(stream)
        slow.say(str(stream.run), frames.Delta(text="y"))
        assert texts([await anext(stream)]) == ["y"]
        assert (await conversation.cancel(str(stream.run))).status == "cancelled"
        assert kinds(await taken(stream)) == "done"


async def test_cancelling_who_reads_for_all_lets_another_read(slow: Served) -> None:
    heard: list[AnyFrame] = []

    async def follow(scope: trio.CancelScope, name: str) -> None:
        with scope:
            heard.append(await anext(conversation.send("x", session=name)))
            await conversation.wait(lambda: False)

    async def ask() -> None:
        assert await conversation.ping() >= 0
        heard.append(frames.Pong())

    async with Conversation(slow.path) as conversation, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(follow, scope, "one")
        await trio.testing.wait_all_tasks_blocked()
        while not heard:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(ask)
        scope.cancel()
    assert kinds(heard) == "start pong"


async def test_a_cancelled_request_is_written_before_the_next(server: Served) -> None:
    word = "x" * (1 << 19)
    async with Conversation(server.path) as conversation:
        with server.lock:  # so the server reads nothing meanwhile
            with trio.move_on_after(0) as scope:
                for number in range(8):
                    await conversation.request(Send(input=word, session=f"s{number}"))
            assert scope.cancelled_caught
        assert await conversation.ping() >= 0
        assert kinds(await taken(conversation.frames(), 1)) == "start"


async def test_much_is_said_while_much_is_heard(server: Served) -> None:
    word = "x" * (1 << 16)
    async with Conversation(server.path) as conversation:
        for number in range(30):
            await conversation.request(Send(input=word, session=f"s{number}"))
        everything = conversation.frames()
        assert len(texts(await taken(everything, 30 * 6))) == 30


async def test_what_is_not_read_is_bounded(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MAX_KEPT", 10_000)
    async with Conversation(slow.path) as conversation:
        unread = conversation.send("x")
        await anext(unread)
        slow.say(str(unread.run), *[frames.Delta(text="y" * 1000)] * 20)
        with pytest.raises(Failed, match="ENOBUFS"):
            await ping_on(conversation)
        assert len(await taken(unread, 21)) == 21
        await conversation.ping()


async def test_resume_approve_and_low_level_requests(slow: Served) -> None:
    async with Conversation(slow.path) as conversation:
        events = conversation.resume()
        stream = conversation.send("x")
        await anext(stream)
        run = str(stream.run)
        slow.say(run, frames.Approval(call="c", name="fs.write", input={}, effects=[], reason=""))
        assert kinds(await taken(events, 3)) == "start message approval"
        await conversation.approve(run, "c", "allow_once", {"path": "y"})
        assert slow.world.decisions[-1].input == {"path": "y"}
        with pytest.raises(Failed, match="EALREADY"):
            await conversation.approve(run, "c", "deny")
        await conversation.request(Ping(id="p"))
        assert kinds(await taken(conversation.frames(), 1)) == "pong"
        conversation.close()
        assert await taken(events) == []
        with pytest.raises(Failed, match="ECANCELED"):
            await conversation.ping()


async def test_closing_wakes_who_reads(slow: Served) -> None:
    async with Conversation(slow.path) as conversation, trio.open_nursery() as nursery:
        nursery.start_soon(taken, conversation.resume())
        await trio.testing.wait_all_tasks_blocked()
        conversation.close()


async def test_a_server_that_goes_in_the_middle_of_a_run(slow: Served) -> None:
    async with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        await taken(stream, 2)
        slow.hang_up(last=b'{"type":"delta","id":"3","run":"r-2","te')
        with pytest.raises(Failed, match="EHOSTDOWN") as caught:
            await anext(stream)
        assert caught.value.run == stream.run
        with pytest.raises(Failed, match="EHOSTDOWN"):
            await conversation.ping()


async def test_a_server_that_speaks_something_else(slow: Served) -> None:
    async with Conversation(slow.path) as conversation:
        stream = conversation.send("x")
        await anext(stream)
        slow.hang_up(last=b"HTTP/1.1 400 Bad Request\n")
        with pytest.raises(Failed, match="EPROTO"):
            await taken(stream)


async def test_who_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="ENOENT"):
        async with Conversation(tmp_path / "nobody"):
            pass
    with pytest.raises(Failed, match="ENOENT"):
        await text(run(tmp_path / "nobody"))


async def test_a_send_goes_on_after_a_restart(slow: Served) -> None:
    heard: list[AnyFrame] = []
    async for frame in send(slow.path, "x", pauses=[0] * 100):
        heard.append(frame)
        if isinstance(frame, frames.Message) and slow.accepted == 1:
            slow.restart()
    # abi.md 5: "A run that was active at a crash ends as done{status:error, code:EIO}"
    assert (kinds(heard), slow.accepted) == ("start message error done", 2)


async def test_a_session_is_followed_through_restarts(server: Served) -> None:
    await text(send(server.path, "a"))
    async with resume(server.path, pauses=[0] * 100) as events:
        heard = await taken(events, 6)
        for word in ("b", "c"):
            server.restart()
            await text(send(server.path, word))
            heard += await taken(events, 6)
    assert [int(frame.id or 0) for frame in heard] == list(range(1, 19))


async def test_a_temporary_session_ends_with_its_connection(slow: Served) -> None:
    stream = send(slow.path, "x", scope="temp", pauses=[3600])
    await anext(stream)
    slow.hang_up()
    with pytest.raises(Failed, match="EHOSTDOWN"):
        await taken(stream)
