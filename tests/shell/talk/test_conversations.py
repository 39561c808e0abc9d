"""Sessions in use, without a mount: lost, removed, idle or over their limits, and the clients told of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta
from cortexfs.core.registry import Key
from cortexfs.models.ask.driver import Driver, Turn
from cortexfs.sessions import checkpoint
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.log import Log
from cortexfs.sessions.store import SessionLimits
from cortexfs.talk.conversations import IDLE, IDLE_RUNS
from tests.settled import settled
from tests.shell.conversing import ECHO, HANG, SCRIPT, Client, Frame, World, conversing


class Disk:
    """Plays fsync, which fails while `broken`."""

    def __init__(self) -> None:
        self.broken = False

    def sync(self, descriptor: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(descriptor)


async def history(world: World, session: str, object: Key = ECHO) -> list[Frame]:
    with world.connected(object) as client:
        await client.ask("resume", session=session)
        frames: list[Frame] = await client.all()
        return frames


def refused(frames: list[Frame], code: str) -> None:
    """abi.md 5.13."""
    assert [frame["type"] for frame in frames[-2:]] == ["error", "done"]
    assert (frames[-2]["code"], frames[-1]["code"], frames[-1]["status"]) == (code, code, "error")
    assert sum(frame["type"] == "done" for frame in frames) == 1


# A log that cannot be kept, or not as fast as events come.


async def test_runs_together_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A run that can wait must not get EAGAIN, however many other runs there are.
    monkeypatch.setattr("cortexfs.sessions.log.TOGETHER", 100_000)
    async with conversing(tmp_path) as world, contextlib.AsyncExitStack() as stack:
        clients = [stack.enter_context(world.connected(SCRIPT)) for _ in range(40)]
        for number, client in enumerate(clients):
            await client.send('[{"burst":1000,"size":32}]', session=f"s{number}")
        for client in clients:
            frames = await client.until("done")
            assert frames[-1]["status"] == "ok", frames[-2:]
            assert sum(frame["type"] == "delta" for frame in frames) == 1000


async def test_a_done_that_is_not_on_disk_is_never_seen(tmp_path: Path) -> None:
    # abi.md 5.28
    disk = Disk()
    async with conversing(tmp_path, sync=disk.sync) as world:
        with world.connected() as client, world.connected() as follower:
            await client.send("before", session="s", id="a")
            before = await client.until("done")
            await follower.ask("resume", session="s")
            assert await follower.until("done") == before
            disk.broken = True
            await client.send("lost", session="s", id="b")
            frames = await client.until("done")
            refused(frames, "EIO")
            assert not [frame for frame in frames if frame["type"] == "done" and "id" in frame]
            disk.broken = False
            await client.send("lost", session="s", id="b")  # the first was not answered, so this is no retry
            again = await client.until("done", status="ok")
            assert again[0]["request"] == "b"
            seen = await follower.until("done", run=again[-1]["run"])
        whole = await history(world, "s")
        numbers = [int(frame["id"]) for frame in whole]
        assert numbers == sorted(set(numbers))
        assert whole[: len(before)] == before
        assert whole[-1] == again[-1]
        assert [frame for frame in seen if "id" in frame][-1] == whole[-1]
        await world.idle()
        assert world.held() == 0


async def test_waiting_messages_are_lost_with_their_session(tmp_path: Path) -> None:
    # abi.md 5.13 for each, whoever waits for it
    disk = Disk()
    async with conversing(tmp_path, sync=disk.sync) as world:
        with world.connected(SCRIPT) as client, world.connected(SCRIPT) as other:
            await client.send(json.dumps([{"approval": {"name": "t", "call": "c"}}]), session="s", id="0")
            run = (await client.until("approval"))[-1]["run"]
            for number in range(1, 5):
                await client.send("[]", session="s", id=str(number))
            assert await client.is_alive()
            disk.broken = True
            await other.ask("approve", run=run, call="c", decision="deny")
            frames = [frame for _ in range(5) for frame in await client.until("done")]
            assert {frame.get("code") for frame in frames if frame["type"] == "done"} == {"EIO"}
            assert len({frame["run"] for frame in frames if frame["type"] == "done"}) == 5
            disk.broken = False
            await other.send("[]", session="s", id="new")
            assert (await other.until("done", status="ok"))[0]["request"] == "new"
        await world.idle()
        assert world.held() == 0


async def test_neighbours_of_a_lost_session_notice_nothing(tmp_path: Path) -> None:
    # abi.md 5.15
    disk = Disk()
    async with conversing(tmp_path, sync=disk.sync) as world:
        with world.connected(SCRIPT) as client:
            await client.send(HANG, session="long", id="l")
            await client.until("delta")
            await client.send("in memory", scope="temp")
            await client.until("done")
            disk.broken = True
            await client.send("[]", session="s")
            refused(await client.until("done"), "EIO")
            disk.broken = False
            await client.ask("cancel", id="l")
            assert (await client.until("done"))[-1]["status"] == "cancelled"


async def test_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    # abi.md 5.13, also for one who can be told nothing else of his run
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client, world.connected(SCRIPT) as late:
            await client.send(HANG, session="s", id="m")
            run = (await client.until("delta"))[-1]["run"]
            path = world.sessions.folder(world.address("s", SCRIPT)) / "events.jsonl"
            world.sessions._commit.descriptors.forget(path)
            path.rename(path.with_name("away"))
            await late.send(HANG, session="s", id="m")
            frames = await late.until("done")
            refused(frames, "ENOENT")
            assert {frame["run"] for frame in frames} == {run}
            await late.ask("resume", session="s")
            assert (await late.error())["code"] == "ENOENT"
            assert await late.all() == []
            path.with_name("away").rename(path)
            await client.ask("cancel", id=run)
            assert (await client.until("done"))[-1]["status"] == "cancelled"


# A session that is removed.


@pytest.mark.parametrize("scope", ["private", "shared"])
async def test_a_session_removed_under_its_followers(tmp_path: Path, scope: str) -> None:
    # abi.md 5.33; who follows it is told, once
    async with conversing(tmp_path) as world:
        with world.connected() as client, world.connected() as follower:
            await client.send("old", session="s", scope=scope, id="m")
            await client.until("done")
            await follower.ask("resume", session="s", scope=scope)
            await follower.until("done")
            (live,) = world.conversations._live.values()
            await world.sessions.remove(live.address)
            error = await follower.error()
            assert error["code"] == "ENOENT"
            assert "removed" in error["message"]
            assert await follower.is_alive()
            await client.send("new", session="s", scope=scope, id="m")
            new = await client.until("done")
            assert [frame["id"] for frame in new][:2] == ["1", "2"]
            await follower.ask("resume", session="s", scope=scope)
            assert await follower.until("done") == new


async def test_a_session_removed_in_the_midst_of_a_flood(tmp_path: Path) -> None:
    # abi.md 5.13
    async with conversing(tmp_path) as world:
        for turn in range(5):
            with world.connected(SCRIPT) as client:
                await client.send('[{"burst":200000}]', session="s", id="m")
                for _ in range(turn * 100):
                    await client.frame()
                await client.until("delta")
                await world.sessions.remove(world.address("s", SCRIPT))
                refused(await client.until("done"), "ENOENT")
                assert await client.is_alive()
        await world.idle()
        assert world.held() == 0
        assert len(world.conversations) <= 1


# Sessions in memory.


async def test_idle_sessions_are_bounded(tmp_path: Path) -> None:
    # abi.md 5.25: sessions that nobody uses are few
    async with conversing(tmp_path) as world:
        for number in range(IDLE + 20):
            with world.connected() as client:
                await client.send("x", session=f"s{number}")
                await client.until("done")
        await world.idle()
        assert len(world.conversations) == IDLE
        await settled(world.sessions)  # the last few sessions are held until their files are made
        assert len(world.sessions._logs) < IDLE + 10  # no reference cycle keeps the other logs
        for number in (0, IDLE + 19):  # a session that was put away, and a session that was not
            assert (await history(world, f"s{number}"))[-1]["status"] == "ok"


async def test_large_idle_sessions_do_not_stay(tmp_path: Path) -> None:
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            for _ in range(IDLE_RUNS // 10):
                for _ in range(11):
                    await client.send("[]", session="large")
                for _ in range(11):
                    await client.until("done")
        await world.idle()
        assert len(world.conversations) == 0
        assert sum(frame["type"] == "done" for frame in await history(world, "large", SCRIPT)) == 1100


async def test_temp_sessions_have_a_limit(tmp_path: Path) -> None:
    # abi.md 5.36: ENOSPC, and the session can be used again
    limits = SessionLimits(temp_session=64 << 10, temp_total=100 << 10)
    async with conversing(tmp_path, limits=limits) as world:
        with world.connected(SCRIPT) as client:
            await client.send('[{"burst":5000,"size":100}]', scope="temp", id="m")
            frames = await client.until("done")
            refused(frames, "ENOSPC")
            assert "temp session" in frames[-2]["message"]
            assert await client.is_alive()
            await client.send("[]", scope="temp", session="other", id="m")
            assert (await client.until("done"))[-1]["status"] in ("ok", "error")
        await world.idle()
        assert world.held() == 0
        assert world.sessions._budget.used == 0
        with world.connected(SCRIPT) as client:
            await client.send("[]", scope="temp")
            assert (await client.until("done"))[-1]["status"] == "ok"


async def over(client: Client) -> None:
    """Wait until a message is answered, or refused as there is no room for its session."""
    while (said := await client.frame()) is not None:
        if said["type"] == "done" or (said["type"] == "error" and "run" not in said):
            return


async def test_one_user_cannot_take_all_of_the_memory_for_temp_sessions(tmp_path: Path) -> None:
    # abi.md 5.25; design.md: nobody locks out others
    limits = SessionLimits(temp_session=1 << 20, temp_total=4 << 20)
    async with conversing(tmp_path, limits=limits) as world:
        with world.connected(SCRIPT) as greedy, world.connected(SCRIPT, uid=1) as other:
            for number in range(6):
                await greedy.send('[{"burst":5000,"size":120}]', scope="temp", session=f"s{number}")
                await over(greedy)
            await other.send('[{"burst":1000,"size":100}]', scope="temp")
            assert (await other.until("done"))[-1]["status"] == "ok"


# Drivers.


def only(driver: Driver) -> Callable[[Key], Driver]:
    return lambda _: driver


async def test_a_driver_that_does_not_end_when_told(tmp_path: Path) -> None:
    # models/ask/driver.py: "Trio's cancellation cancels it, and frames that it has sent are kept."
    async def clings(turn: Turn) -> None:
        try:
            await turn.say(Delta(text="begun"))
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()

    async with conversing(tmp_path, drivers=only(clings)) as world:
        with world.connected() as client:
            await client.send("x", id="m")
            await client.until("delta")
            await client.ask("cancel", id="m")
            assert (await client.until("done"))[-1]["status"] == "cancelled"


@pytest.mark.parametrize("fault", [Fault("ETIMEDOUT", "slow"), Fault("EACCES", "no key")])
async def test_a_driver_that_fails(tmp_path: Path, fault: Fault) -> None:
    async def fails(_: Turn) -> None:
        raise fault

    def absent(_: Key) -> Driver:
        raise fault

    for drivers in (only(fails), absent):
        async with conversing(tmp_path, drivers=drivers) as world:
            with world.connected() as client:
                await client.send("x")
                refused(await client.until("done"), fault.code)


async def test_runs_that_end_when_the_daemon_stops(tmp_path: Path) -> None:
    # abi.md 8.10
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client, world.connected(SCRIPT) as waiting:
            await client.send(HANG, session="s", id="0")
            await client.until("delta")
            await waiting.send("[]", session="s", id="1")
            assert await waiting.is_alive()
            world.conversations.close()
            with trio.move_on_after(0):
                await world.runs.drained()
            await world.conversations.stop()
            refused(await client.until("done"), "EHOSTDOWN")
            assert await waiting.is_alive(), "a message that waited was begun"
            await client.send("[]", session="s", id="2")
            error = await client.error()
            assert (error["code"], error["request"]) == ("EHOSTDOWN", "2")
        whole = await history(world, "s", SCRIPT)
        assert whole[-1]["code"] == "EHOSTDOWN"
        assert [frame["request"] for frame in whole if frame["type"] == "start"] == ["0"]


@pytest.mark.parametrize("step", [1, checkpoint.STEP], ids=["kept", "read"])
async def test_what_was_written_is_there_for_the_next_daemon(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 5.14, after a restart; a long log is not read anew for it
    monkeypatch.setattr(checkpoint, "STEP", step)

    async def say(client: Client) -> list[Frame]:
        await client.send("hello you", session="s", id="m")
        return await client.until("done")

    told: list[list[Frame]] = []
    for _ in range(3):
        async with conversing(tmp_path) as world:
            with world.connected() as client:
                told.append(await say(client))
            await world.idle()
            live = await world.conversations.open(world.address("s"))
            assert isinstance(live.log, FileLog)
            assert (live.log.checkpoint[0] == live.log.size) == (step == 1)
            assert len(live.session.runs) == 1
    assert told[0] == told[1] == told[2]


async def test_who_leaves_before_a_question_is_said_ends_in_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the log has no room yet, so the session does not know the question that is to be settled
    crowded, room, verdicts = trio.Event(), trio.Event(), []

    async def wait(_: Log) -> None:
        crowded.set()
        await room.wait()

    async def asks(turn: Turn) -> None:
        monkeypatch.setattr(Log, "room", wait)
        verdicts.append(await turn.ask(Approval(call="c", name="t", input={}, effects=[], reason="")))

    async with conversing(tmp_path, drivers=lambda key: asks) as world:
        with world.connected() as client:
            await client.send("x")
            await crowded.wait()
        await world.deserted()
        room.set()
        await world.idle()
    assert [verdict.decision for verdict in verdicts] == ["deny"]
