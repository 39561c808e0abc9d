"""Clients that want the data of others, or more than their share (docs/attacks.md)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core.frames import MAX_LINE
from cortexfs.core.talk import requests, session
from cortexfs.peers import guests
from cortexfs.sessions.log import Most
from cortexfs.talk import connection
from cortexfs.talk.session import MESSAGE
from tests.shell.conversing import HANG, SCRIPT, Client, conversing

OTHER = 4242
ASKS = json.dumps([{"approval": {"name": "shell.exec", "call": "c", "input": {}}}])


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_one_user_decides_nothing_for_another(tmp_path: Path) -> None:
    # abi.md 5.37: whom it acts for is asked
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as mine, world.connected(SCRIPT, uid=OTHER) as his:
            await his.ask("resume", session="s", scope="shared")
            await mine.send(ASKS, session="s", scope="shared")
            run = (await mine.until("approval"))[-1]["run"]
            await his.until("approval")
            await his.ask("approve", id="a", run=run, call="c", decision="allow_session")
            refused = (await his.until("error"))[-1]
            assert (refused["code"], refused["request"]) == ("EPERM", "a")
            await mine.ask("approve", run=run, call="c", decision="deny")
            assert (await mine.until("delta"))[-1]["text"] == "deny"
            await mine.until("done")


async def test_unfinished_lines_are_memory_of_their_user(tmp_path: Path) -> None:
    # abi.md 5.25
    most = guests.MAX_HELD // MAX_LINE
    async with conversing(tmp_path) as world, trio.open_nursery() as nursery:
        with ExitStack() as stack:
            clients = [stack.enter_context(world.connected()) for _ in range(most + 3)]
            for some in (clients[:most], clients[most:]):
                for client in some:
                    nursery.start_soon(client.raw, b"x" * (MAX_LINE - 1))
                await quiet()
            assert world.held() == guests.MAX_HELD
            with world.connected(uid=OTHER) as other:
                await other.raw(b'{"op":"ping","x":"' + b"x" * (MAX_LINE - 100) + b'"}\n')
                assert (await other.until("pong"))[-1] == {"type": "pong"}
            for client in clients[most:]:  # refused, but still usable
                assert (await client.error())["code"] == "EAGAIN"
                await client.raw(b"still the same line\n")
                assert await client.is_alive()
            await clients[0].raw(b"\n")
            assert (await clients[0].error())["code"] == "EINVAL"
            await quiet()
            assert world.held() == guests.MAX_HELD - MAX_LINE
        await world.deserted()
        assert world.held() == 0


async def test_long_lines_that_are_not_read_are_memory_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 5.25: of a MiB that a session holds no connection may have its own copy
    monkeypatch.setattr(guests, "MAX_UNREAD", 4)
    word = "x" * (MAX_LINE - 10_000)
    async with conversing(tmp_path) as world:
        with world.connected() as client:
            await client.send(word, session="long")
            whole = await client.until("done")
        with ExitStack() as stack:
            deaf = [stack.enter_context(world.connected()) for _ in range(20)]
            for client in deaf:
                await client.ask("resume", session="long")
            await quiet()
            connections_ = [each for live in world.conversations._live.values() for each in live.followers]
            ours = [each for each in connections_ if isinstance(each, connection.Connection)]
            kept = sum(len(each._saying.unsent) for each in ours)
            assert kept <= 4 * MAX_LINE
            with world.connected(uid=OTHER) as other:  # the other user is not delayed
                await other.send(word)
                await other.until("done")

            async def read(client: Client) -> None:
                assert await client.until("done") == whole

            async with trio.open_nursery() as nursery:
                for client in deaf:
                    nursery.start_soon(read, client)
        await world.deserted()
        assert world.held() == 0


async def test_an_input_weighs_what_it_takes(tmp_path: Path) -> None:
    # abi.md 5.25: a MiB of empty lists is 20 MiB of memory
    bomb = json.dumps({"content": HANG})[:-1].encode() + b',"x":[[]' + b",[]" * 300_000 + b"]}"
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            for number in range(10):
                head = b'{"op":"send","session":"s%d","id":"%d","input":' % (number, number)
                await client.raw(head + bomb + b"}\n")
                if (frame := await client.frame()) and frame["type"] == "error":
                    break
                await client.until("delta")
            assert frame
            assert (frame["code"], number) == ("EAGAIN", 1)
        with world.connected(SCRIPT) as client:
            await client.ask("cancel", id="0")
            await client.until("done", status="cancelled")
        await world.idle()
        assert world.held() == 0


async def test_many_messages_of_a_session_are_memory_of_who_uses_it(tmp_path: Path) -> None:
    # docs/protocol.md, limits: a session is remembered message by message while it is in use
    async with conversing(tmp_path) as world:
        with world.connected() as client:
            for number in range(200):
                await client.send("x", id=str(number))
                await client.until("done")
            assert world.held() >= 200 * MESSAGE
            assert world.held() < 400 * MESSAGE + connection.FOLLOWED
        await world.deserted()
        assert world.held() == 0
        with world.connected() as client:
            await client.ask("resume", after="1")
            await client.until("done")
            assert world.held() >= 200 * MESSAGE
            await client.send(HANG)
        await world.idle()
        assert world.held() == 0


async def test_messages_of_a_session_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 5.36; docs/protocol.md, limits: "messages of a session"; what was said can be had again
    monkeypatch.setattr(session, "MAX_RUNS", 3)
    async with conversing(tmp_path) as world:
        with world.connected() as client:
            for number in range(3):
                await client.send("x", id=str(number))
                await client.until("done")
            await client.send("x", id="3")
            assert (await client.error())["code"] == "EFBIG"
            await client.send("x", id="1")
            assert (await client.until("done"))[-1]["status"] == "ok"


async def test_long_lines_are_understood_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # design: "A thing that could block": a MiB of brackets must not make other clients wait
    main = trio.lowlevel.current_trio_token()
    where: list[bool] = []
    decode = requests.decode

    def watched(line: bytes | None) -> object:
        try:
            where.append(trio.lowlevel.current_trio_token() is main)
        except RuntimeError:
            where.append(False)
        return decode(line)

    monkeypatch.setattr(requests, "decode", watched)
    async with conversing(tmp_path) as world:
        with world.connected() as client:
            await client.raw(b'{"op":"ping","x":[' + b"[]," * 300_000 + b"[]]}\n")
            await client.until("pong")
            await client.ask("ping")
            await client.until("pong")
    assert where == [False, True]


async def test_the_sessions_of_a_user_are_bounded_in_number(tmp_path: Path) -> None:
    # docs/config.md: `sessions.user_sessions`; others, what is there, and what is removed do not count
    async with conversing(tmp_path, most=Most(space_sessions=3)) as world:
        with world.connected() as client, world.connected(uid=OTHER) as other:
            for number in range(3):
                await client.send("x", session=f"s{number}", id="m")
                await client.until("done")
            await client.send("x", session="more", id="m")
            assert (await client.error())["code"] == "EDQUOT"
            await client.send("again", session="s0")
            assert (await client.until("done"))[-1]["status"] == "ok"
            await other.send("x", session="more")
            assert (await other.until("done"))[-1]["status"] == "ok"
            await world.sessions.remove(world.address("s1"))
            await client.send("x", session="more", id="m")
            assert (await client.until("done"))[-1]["status"] == "ok"
    async with conversing(tmp_path, most=Most(space_sessions=3)) as world:  # counted anew
        with world.connected() as client:
            await client.send("x", session="another")
            assert (await client.error())["code"] == "EDQUOT"
            await client.send("x", session="more", id="m")  # a retry
            assert (await client.until("done"))[-1]["status"] == "ok"


@pytest.mark.parametrize(
    ("most", "code"), [(Most(session_bytes=1 << 20), "EFBIG"), (Most(space_bytes=1 << 20), "EDQUOT")]
)
async def test_the_sessions_of_a_user_are_bounded_in_size(tmp_path: Path, most: Most, code: str) -> None:
    # abi.md 5.36
    # docs/config.md: `sessions.session_mib`, `sessions.user_mib`: a run ends well, and can be read
    burst = json.dumps([{"burst": 100_000, "size": 1000}])
    async with conversing(tmp_path, most=most) as world:
        with world.connected(SCRIPT) as client:
            await client.send(burst, id="m")
            frames = await client.until("done")
            assert [frame.get("code") for frame in frames[-2:]] == [code, code]
            assert all("id" in frame for frame in frames)
            size = (world.sessions.folder(world.address(object=SCRIPT)) / "events.jsonl").stat().st_size
            assert size < 4 << 20
            await client.send("[]", id="n")
            assert (await client.error())["code"] == code
    async with conversing(tmp_path, most=most) as world:
        with world.connected(SCRIPT) as client:
            await client.ask("resume")
            assert await client.until("done") == frames
            await client.send("[]", session="new")
            assert (await client.frame() or {}).get("code", "EFBIG") == code
