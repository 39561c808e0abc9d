"""One connection, without a mount: its requests, its answers, and its end (abi.md 5)."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.peers.guests import MAX_HELD
from cortexfs.sessions.layout import listing
from cortexfs.talk.connection import FOLLOWED, Connection
from tests.shell.conversing import HANG, SCRIPT, Client, Frame, World, conversing


def burst(count: int, size: int = 100) -> str:
    return json.dumps([{"burst": count, "size": size}])


def ids(frames: list[Frame]) -> list[int]:
    return [int(frame["id"]) for frame in frames if "id" in frame]


async def test_what_was_said_before_leaving_is_heard(tmp_path: Path) -> None:
    # abi.md 5.24; what was written before it counts, also
    # when the answers find nobody
    async with conversing(tmp_path) as world:
        client = world.connect()
        for number in range(20):
            await client.ask("ping")
            await client.send("hello", session=f"s{number}")
        client.leave()
        await world.idle()
        for number in range(20):
            with world.connected() as client:
                await client.ask("resume", session=f"s{number}")
                assert (await client.all())[-1]["status"] == "ok"


async def test_one_who_does_not_want_to_hear_is_heard(tmp_path: Path) -> None:
    # abi.md 5.3: lines are requests, also where no answer is wanted (`shutdown(SHUT_RD)`, `socat -u`)
    async with conversing(tmp_path) as world:
        client = world.connect()
        client.stream.shutdown(0)
        for number in range(5):
            await client.ask("ping")
            await client.send("hello", session=f"s{number}")
            await trio.testing.wait_all_tasks_blocked()
        client.leave()
        await world.idle()
        listed = listing(world.sessions.root, world.address().space, "model", "debug/echo")
        assert len(listed) == 5


async def test_a_last_line_is_heard_while_runs_end(tmp_path: Path) -> None:
    # docs/protocol.md: "A last line without a newline counts when you close your side."
    async with conversing(tmp_path) as world:
        for number in range(30):
            with world.connected() as client:
                await client.send("first", session=f"a{number}")
                await client.raw(b'{"op":"send","input":"last","session":"b%d"}' % number)
                frames = await client.all()
            assert sum(frame["type"] == "done" for frame in frames) == 2


async def test_history_is_told_to_one_who_says_no_more(tmp_path: Path) -> None:
    # docs/protocol.md: "resume gives you every event of the session": `echo '{"op":"resume"}' | nc -NU`
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.send(burst(2000), session="s")
            whole = await client.until("done")
        for _ in range(10):
            with world.connected(SCRIPT) as client:
                for number in range(5):
                    await client.ask("resume", session=f"other{number}")
                await client.ask("resume", session="s")
                assert await client.all() == whole


@pytest.mark.parametrize("resumes", [False, True])
async def test_one_who_says_no_more_is_told_the_rest_of_his_runs(tmp_path: Path, resumes: bool) -> None:
    # docs: a half-closed connection is told the rest of its runs, and then closed
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client, world.connected(SCRIPT) as other:
            if resumes:  # the resumed stream would end at the half-close
                await client.ask("resume", session="s")
            await client.send(HANG, session="s", id="m")
            await client.until("delta")
            client.no_more()
            await other.ask("cancel", id="m")
            assert [frame["type"] for frame in await client.rest()] == ["message", "done"]
            await other.until("done", status="cancelled")
        await world.deserted()


async def test_a_slow_reader_holds_up_himself_alone(tmp_path: Path) -> None:
    # abi.md 5.15
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as slow, world.connected(SCRIPT) as quick:
            await slow.send(burst(30_000), session="s", id="m")
            await quick.send(burst(30_000), session="s", id="m")  # the same message: one run
            heard = await quick.until("done")
            assert ids(heard) == sorted(set(ids(heard)))
            assert await slow.until("done") == heard  # "without gap or duplicate"


async def test_one_who_reads_nothing_is_not_heard_without_end(tmp_path: Path) -> None:
    # abi.md 5.25
    async with conversing(tmp_path) as world:
        with world.connected() as client:
            asked, line = 0, b'{"op":"ping","id":"%s"}\n' % (b"x" * 200)
            while await _taken(client, line):
                asked += 1
                assert asked < 100_000, "a client that does not read is heard for ever"
            with world.connected() as neighbour:
                assert await neighbour.is_alive()
            # The client's requests count once it reads.
            for _ in range(asked):
                assert await client.frame() == {"type": "pong", "request": "x" * 200}


async def _taken(client: Client, line: bytes) -> bool:
    """Returns True if the server takes a whole line, in as much time as it wants."""
    for _ in range(2):
        with contextlib.suppress(BlockingIOError):
            assert client.stream.send(line) == len(line)
            return True
        await trio.testing.wait_all_tasks_blocked()
    return False


async def test_a_resume_that_goes_back(tmp_path: Path) -> None:
    # abi.md 5.16
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.send(burst(5000), session="s")
            whole = await client.until("done")
        for after in (4000, 2500, 5):
            with world.connected(SCRIPT) as client:
                await client.ask("resume", session="s", after=str(after))
                first = [await client.frame() for _ in range(500)]
                await client.ask("resume", session="s")  # anew, during the first resume
                frames = [frame for frame in first if frame] + await client.all()
                assert sorted(ids(frames)) == ids(whole)
                assert len({frame["id"] for frame in frames}) == len(frames)


async def test_resumes_that_go_back_while_a_run_goes_on(tmp_path: Path) -> None:
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as sender, world.connected(SCRIPT) as client:
            await sender.send(burst(20_000), session="s")
            await sender.until("delta")
            await client.ask("resume", session="s", after="2")
            head = [await client.frame() for _ in range(50)]
            await client.ask("resume", session="s", after="1")
            await client.ask("resume", session="s")
            await sender.send("[]", session="s", id="last")
            whole = await sender.until("done")
            whole += await sender.until("done")
            last = whole[-1]["id"]
            frames = [frame for frame in head if frame] + await client.until("done", id=last)
            assert sorted(ids(frames)) == list(range(1, int(last) + 1))


async def test_an_event_is_sent_once_to_one_who_follows_twice(tmp_path: Path) -> None:
    # abi.md 5.16
    async with conversing(tmp_path) as world:
        with world.connected() as client:
            await client.ask("resume", session="s")
            await client.ask("resume", session="s")
            await client.send("hello you", session="s", id="m")
            await client.until("done")
            await client.send("hello you", session="s", id="m")
            frames = await client.all()
        # docs/protocol.md: "if it has had the `done`, a `start` and a `done` without event ids"
        assert [frame["type"] for frame in frames] == ["start", "done"]
        assert not ids(frames)


async def held_nothing(world: World) -> None:
    await world.idle()
    assert world.held() == 0
    assert not world.conversations._working


async def test_memory_is_given_back_when_a_run_ends(tmp_path: Path) -> None:
    # abi.md 5.25: what a message holds is let go in every ending
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            for input in ("[]", '[{"error":{"code":"EIO","message":"x"}}]', "no script"):
                await client.send(input)
                await client.until("done")
            assert world.held() < MAX_HELD
            await client.send(HANG, id="active")
            await client.send(HANG, id="waits")
            await client.until("delta")
            await client.ask("cancel", id="waits")
            await client.until("done", status="cancelled")
            await client.ask("cancel", id="active")
            await client.until("done", status="cancelled")
            await client.send("[]", id="retried")
            await client.until("done")
            await client.send("[]", id="retried")
            await client.until("done")
            await client.send("other", id="retried")
            assert (await client.error())["code"] == "EINVAL"
        await held_nothing(world)


async def test_memory_is_given_back_when_a_temp_session_ends(tmp_path: Path) -> None:
    # abi.md 5.24
    async with conversing(tmp_path) as world:
        for _ in range(3):
            client = world.connect(SCRIPT)
            for number in range(5):
                await client.send(HANG, scope="temp", session=f"s{number % 2}")
            await client.until("delta")
            assert world.held() > 0
            client.leave()
            await held_nothing(world)
            assert len(world.conversations) == 0
            assert world.sessions._budget.used == 0
        assert not (tmp_path / "sessions" / "temp").exists()


async def test_memory_is_given_back_when_a_session_is_removed(tmp_path: Path) -> None:
    # abi.md 5.33
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            for number in range(5):
                await client.send(HANG, session="s", id=str(number))
            await client.until("delta")
            await world.sessions.remove(world.address("s", SCRIPT))
            told = [frame for _ in range(5) for frame in await client.until("done")]
            assert [frame["code"] for frame in told if frame["type"] == "error"] == ["ENOENT"] * 5
            assert {frame["status"] for frame in told if frame["type"] == "done"} == {"error"}
            await client.send("[]", session="s", id="0")  # a message of the same name begins anew
            assert (await client.until("done"))[0]["type"] == "start"
        await held_nothing(world)


async def test_sessions_of_a_user_are_bounded(tmp_path: Path) -> None:
    # abi.md 5.25: a user may have many connections, each with many sessions
    async with conversing(tmp_path) as world:
        room = world.guests.hold(world.uid, MAX_HELD - 3 * FOLLOWED)
        with world.connected() as one, world.connected() as two, world.connected(uid=1) as other:
            for client, session in ((one, "a"), (one, "a"), (one, "b"), (two, "c")):
                await client.ask("resume", session=session)
                assert await client.is_alive()
            for op in ("resume", "send"):
                await two.ask(op, session="d", input="x", id="r")
                error = await two.error()
                assert (error["code"], error["request"]) == ("EAGAIN", "r")
            await other.ask("resume", session="d")
            assert await other.is_alive()
        await world.deserted()
        room()
        await held_nothing(world)


@contextlib.asynccontextmanager
async def uncollected() -> AsyncIterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_many_come_and_go(tmp_path: Path) -> None:
    # abi.md 5.25: nothing of them stays, and nothing is left to be found by collections, which come late
    async with conversing(tmp_path) as world, uncollected():

        async def visit(number: int) -> None:
            with world.connected() as client:
                await client.send("hi", session=f"s{number % 7}", scope=("private", "temp")[number % 2])
                if number % 3:
                    await client.until("done")

        for first in range(0, 400, 100):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + 100):
                    nursery.start_soon(visit, number)
        await held_nothing(world)
        assert world.sessions._budget.used == 0
        assert len(world.conversations) <= 7
        assert not [left for left in gc.get_objects() if isinstance(left, Connection)]
