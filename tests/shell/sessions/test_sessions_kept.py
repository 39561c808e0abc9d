"""The files that a session store keeps beside its logs, lists and removes, and sessions in memory alone."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.sessions import disk
from cortexfs.sessions.layout import Address, Space, listing
from cortexfs.sessions.store import Policy, SessionLimits
from tests.settled import settled
from tests.shell.logreader import Reader, grown
from tests.shell.session_stores import SPACE, address, append_each, fill, line, read_to, run_of, shown, store
from tests.waiting import PATIENCE

# The files beside the log.


async def test_the_files_beside_the_log_say_what_it_says(tmp_path: Path) -> None:
    # abi.md 5.32
    placed = b'{"type":"start","id":"7","run":"r2","model":"debug/echo","cwd":"/srv/data"}\n'
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        await settled(sessions)
        folder = sessions.folder(address("a"))
        assert (folder / "state").read_text() == "done\n"
        assert (folder / "latest.md").read_text() == "the answer\n"
        log.append([placed, line(8, "user", "r2", text="and?"), line(9, "assistant", "r2", text="one\n")])
        log.append([line(10, "assistant", "r2", text="two\n")])
        while log.last != 10:
            await grown(log)
        await settled(sessions)
        assert (folder / "state").read_text() == "active\n"
        assert (folder / "latest.md").read_text() == "one\ntwo\n"
        assert (folder / "cwd").read_text() == "/srv/data\n"
        said = [json.loads(row) for row in (folder / "messages.jsonl").read_text().splitlines()]
        assert [row["role"] for row in said] == ["user", "assistant", "user", "assistant", "assistant"]
        assert list(said[0]) == ["id", "run", "role", "content"]
        log.append([line(11, "error", "r2")])
        await log.durable(11)
        meta = await shown(sessions, address("a"))
        assert (meta.state, meta.runs, meta.messages, meta.last, meta.cwd) == (
            "error",
            2,
            5,
            "11",
            "/srv/data",
        )
        index = folder.parent / "index"
        assert (index / "current").read_text() == "a\n"
        hashed = hashlib.sha256(b"/srv/data").hexdigest()[:32]
        assert (index / "by-cwd" / hashed).read_text() == "a\n"


async def test_all_but_the_log_comes_back_from_it(tmp_path: Path) -> None:
    # issue 3: "the documented files are the only copy"
    async with store(tmp_path) as sessions:
        await fill(sessions, "a", runs=3)
        await settled(sessions)
        folder = sessions.folder(address("a"))
        there = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert len(there) == 8
        for name in there.keys() - {"events.jsonl", "created_at"}:  # no other file holds its time
            (folder / name).unlink()
        (folder.parent / "index" / "list").unlink()
    async with store(tmp_path) as sessions:
        await shown(sessions, address("a"))
        await sessions.ordered(address("a").parts[:-1])
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == there
        assert (folder.parent / "index" / "list").read_text() == "a\n"


async def test_folders_and_files_are_private(tmp_path: Path) -> None:
    owned = Space("home/1234", 1234)
    where = Address(owned, "agent", "coder", "s")
    async with store(tmp_path / "root") as sessions:
        log = await sessions.open(where)
        log.append(run_of(1, "r1"))
        await log.durable(6)
        await settled(sessions)
    top = tmp_path / "root" / owned.folder
    for path in [top, *top.rglob("*")]:
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert found.st_uid == os.geteuid(), path  # the tree decides the owner of the home
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


async def test_the_log_grows_in_place_and_the_rest_is_replaced_as_a_whole(tmp_path: Path) -> None:
    # abi.md 1.17
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        await settled(sessions)
        folder = sessions.folder(address("a"))
        with (folder / "events.jsonl").open("rb") as events, (folder / "state").open("rb") as state:
            first = events.read()
            log.append([line(7, "start", "r2")])
            while log.last != 7:
                await grown(log)
            await settled(sessions)
            assert events.read() == line(7, "start", "r2")
            assert (first.count(b"\n"), state.read()) == (6, b"done\n")
        assert (folder / "state").read_bytes() == b"active\n"


# The sessions that exist, and the sessions that may go.


async def test_sessions_are_listed_newest_first(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        for name in ("a", "b", "c"):
            await fill(sessions, name)
        await fill(sessions, "a")
        await settled(sessions)
        found = listing(sessions.root, SPACE, "model", "debug/echo")
        assert [info.address.session for info in found] == ["a", "c", "b"]
        assert {info.state for info in found} == {"done"}
        index = sessions.folder(address("a")).parent / "index"
        assert (index / "list").read_text() == "a\nc\nb\n"
        assert listing(sessions.root, SPACE, "agent", "nobody") == []
        await shown(sessions, address("b"))  # reading does not count as use
        await settled(sessions)
        assert (index / "current").read_text() == "a\n"


@pytest.mark.parametrize("name", ["index", "", "..", "a/b", "x.sock", "x.d", ".removed.1", "a" * 65])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    # abi.md 2.4
    with pytest.raises(Fault, match="EINVAL"):
        address(name)


async def test_a_removed_session_ends_for_readers_and_writers(tmp_path: Path) -> None:
    # abi.md 5.33
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        await fill(sessions, "b")
        behind, live = Reader(log), Reader(log, log.size)
        ends: list[bytes] = []

        async def follow(reader: Reader) -> None:
            ends.append(await reader.read())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, live)
            await trio.testing.wait_all_tasks_blocked()
            await sessions.remove(address("a"))
        assert (ends, await behind.read()) == ([b""], b"")
        with pytest.raises(Fault, match="ENOENT"):
            log.append([line(7)])
        with pytest.raises(Fault, match="ENOENT"):
            await sessions.remove(address("a"))
        await settled(sessions)
        assert sorted(os.listdir(sessions.folder(address("a")).parent)) == ["b", "index"]
        assert (sessions.folder(address("b")).parent / "index" / "list").read_text() == "b\n"
        again = await fill(sessions, "a")
        assert again is not log
        assert again.last == 6


async def test_sessions_removed_together_share_a_sync_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 5.33
    synced: list[Path] = []
    sync = disk.sync_path

    def counted(path: Path, how: Callable[[int], None] = os.fsync) -> None:
        synced.append(path)
        sync(path, how)

    monkeypatch.setattr(disk, "sync_path", counted)
    async with store(tmp_path) as sessions:
        names = [f"s{number}" for number in range(40)]
        for name in [*names, "kept"]:
            await fill(sessions, name)
        await settled(sessions)
        synced.clear()
        failed: list[str] = []

        async def remove(name: str) -> None:
            try:
                await sessions.remove(address(name))
            except Fault as fault:
                failed.append(f"{name} {fault.code}")

        async with trio.open_nursery() as nursery:
            for name in ["never", *names]:
                nursery.start_soon(remove, name)
        above = sessions.folder(address("kept")).parent
        assert failed == ["never ENOENT"]
        assert synced == [above] * len(synced)
        assert 1 <= len(synced) <= 2  # the first in its turn may be alone
        assert sorted(os.listdir(above)) == ["index", "kept"]
        assert (above / "index" / "list").read_text() == "kept\n"


async def test_removing_while_it_is_written_to_leaves_nothing(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        for _ in range(30):
            log = await sessions.open(address("a"))
            log.append(run_of(1, "r1"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.room)
                with pytest.raises(Fault, match="ENOENT"):
                    await sessions.remove(address("never"))
            await log.durable(6)
            log.append(run_of(7, "r2"))
            await sessions.remove(address("a"))
            await settled(sessions)
            assert not sessions.folder(address("a")).exists()


async def test_what_is_old_or_too_many_can_be_seen_and_cleared(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        for age, name in enumerate(["default", "oldest", "older", "old", "held", "new"]):
            await fill(sessions, name)
            events = sessions.folder(address(name)) / "events.jsonl"
            os.utime(events, (0, events.stat().st_mtime - 10_000 + age * 1000))
        await settled(sessions)
        held = await sessions.open(address("held"))

        async def names(policy: Policy) -> list[str]:
            return [info.address.session for info in await sessions.expired(SPACE, policy)]

        assert await names(Policy()) == []
        assert await names(Policy(age=7_500)) == ["older", "oldest"]
        assert await names(Policy(count=3)) == ["older", "oldest"]
        assert await names(Policy(count=0)) == ["old", "older", "oldest"]  # the newest session never expires
        preview = await sessions.expired(SPACE, Policy(count=0))
        await fill(sessions, "old")  # used after the preview
        removed = await sessions.collect(preview)
        assert [info.address.session for info in removed] == ["older", "oldest"]
        left = listing(sessions.root, SPACE, "model", "debug/echo")
        assert {info.address.session for info in left} == {"default", "old", "held", "new"}
        assert held.last == 6


# Temporary sessions.


async def test_a_temp_session_leaves_nothing(tmp_path: Path) -> None:
    # abi.md 5.17
    async with store(tmp_path) as sessions:
        log = sessions.temp(address("t"))
        reader = Reader(log)
        log.append(run_of(1, "r1"))
        await log.durable(6)
        assert await read_to(reader, line(6, "done")) == b"".join(run_of(1, "r1"))
        assert Reader(log, await log.place(6)).behind == len(line(6, "done"))
        assert sessions.temp(address("t")) is log
        sessions.remove_temp(address("t"))
        assert await reader.read() == b""
        assert sessions._budget.used == 0
    assert os.listdir(tmp_path) == []


def of_user(uid: int, session: str = "t") -> Address:
    return Address(Space(f"temp/{uid}", uid), "model", "debug/echo", session)


async def test_temp_sessions_are_bounded_each_and_together(tmp_path: Path) -> None:
    async with store(tmp_path, limits=SessionLimits(temp_session=1 << 20, temp_total=5 << 20)) as sessions:
        big = "x" * 300_000
        for uid, fits in {1: 3, 2: 3, 3: 3, 4: 3, 5: 3, 6: 2}.items():
            log = sessions.temp(of_user(uid))
            with pytest.raises(Fault, match="ENOSPC"):
                append_each(log, [line(id, text=big) for id in range(1, 10)])
            assert log.last == fits
        sessions.remove_temp(of_user(2))
        sessions.temp(of_user(6)).append([line(3, text=big)])
        with pytest.raises(Fault, match="ENOSPC"):  # empty sessions count too
            _ = [sessions.temp(of_user(n)) for n in range(10_000)]


async def test_temp_sessions_of_one_user_are_a_part_of_all(tmp_path: Path) -> None:
    # abi.md 5.25; one user locks out only himself
    async with store(tmp_path, limits=SessionLimits(temp_session=1 << 20, temp_total=4 << 20)) as sessions:
        big = "x" * 300_000
        append_each(sessions.temp(of_user(1, "a")), [line(id, text=big) for id in range(1, 3)])
        with pytest.raises(Fault, match="your temp sessions together may hold at most 1 MiB"):
            append_each(sessions.temp(of_user(1, "b")), [line(id, text=big) for id in range(1, 3)])
        append_each(sessions.temp(of_user(2)), [line(id, text=big) for id in range(1, 4)])
        sessions.remove_temp(of_user(1, "a"))
        append_each(sessions.temp(of_user(1, "b")), [line(id, text=big) for id in range(2, 4)])


async def test_two_sessions_are_renamed_at_a_time_and_one_gets_the_name(tmp_path: Path) -> None:
    codes: list[str] = []
    async with store(tmp_path) as sessions:
        await fill(sessions, "a")
        await fill(sessions, "b")

        async def rename(name: str) -> None:
            try:
                await sessions.rename(address(name), "c")
                codes.append("ok")
            except Fault as fault:
                codes.append(fault.code)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rename, "a")
                nursery.start_soon(rename, "b")
        assert sorted(codes) == ["ENOTEMPTY", "ok"]
        assert (sessions.folder(address("c")) / "events.jsonl").stat().st_size


async def test_a_session_that_is_renamed_right_after_an_event_stays_on_the_list(tmp_path: Path) -> None:
    # abi.md 5.40
    async with store(tmp_path) as sessions:
        log = await sessions.open(address("a"))
        async with sessions._commit.exclusive():
            pass  # no pass is under way
        async with sessions._commit.beside.held():
            log.append(run_of(1, "r1"))
            await log.durable(6)
            await sessions._rename(address("a"), address("b"))  # as `rename` when it has its turn
        await settled(sessions)
        above = sessions.folder(address("b")).parent
        assert (above / "index" / "list").read_text() == "b\n"
        assert (above / "b" / "state").read_text() == "done\n"
