"""The session store: appending, reading, the files beside the log, removing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.sessionfiles import Address, Space
from cortexfs.sessionlog import Log, Reader
from cortexfs.sessions import Limits, Policy, Sessions
from tests.shell.sessions import SPACE, address, line, run_of, store


async def read_to(reader: Reader, end: bytes) -> bytes:
    """What a reader gives until it has given `end`."""
    got = b""
    while not got.endswith(end):
        got += await reader.read()
    return got


def append_each(log: Log, lines: list[bytes]) -> None:
    for one in lines:
        log.append([one])


async def fill(sessions: Sessions, name: str, runs: int = 1) -> Log:
    log = await sessions.open(address(name))
    for _ in range(runs):
        lines = run_of(log.given + 1, f"r{log.given}")
        log.append(lines)
        await log.durable(log.given)
    return log


async def test_what_is_appended_is_the_file_and_what_is_read(tmp_path: Path) -> None:
    # design: "one append-only log per session is buffer, history and resume source"
    lines = run_of(1, "r1")
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append(lines)
        await log.durable(log.given)
        assert (sessions.folder(address()) / "events.jsonl").read_bytes() == b"".join(lines)
        assert await read_to(await log.reader(), lines[-1]) == b"".join(lines)


async def test_a_reader_catches_up_and_follows_without_gap_or_duplicate(tmp_path: Path) -> None:
    # abi.md 5: "every event of the session after event id `after`, then live events, without gap or
    # duplicate"
    lines = [line(id) for id in range(1, 2001)]
    got: dict[int, bytes] = {}
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())

        async def follow(after: int, started: trio.TaskStatus[None]) -> None:
            reader = await log.reader(str(after) if after else None)
            started.started()
            got[after] = await read_to(reader, lines[-1])

        async with trio.open_nursery() as nursery:
            for at in range(0, 2000, 100):
                while log.last < at:
                    await log.grown()
                await nursery.start(lambda after=at, *, task_status: follow(after, task_status))
                log.append(lines[at : at + 50])
                log.append(lines[at + 50 : at + 100])
    for after, data in got.items():
        assert data == b"".join(lines[after:]), after
    assert len(got) == 20


async def test_each_event_can_be_resumed_after(tmp_path: Path) -> None:
    lines = run_of(1, "r1", deltas=5) + [line(id, text="é" * 70_000) for id in (100, 200, 301)]
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append(lines)
        await log.durable(log.given)
        for at, before in enumerate(lines[:-1]):
            reader = await log.reader(json.loads(before)["id"])
            assert await read_to(reader, lines[-1]) == b"".join(lines[at + 1 :])
        assert (await log.reader("301")).behind == 0


@pytest.mark.parametrize(
    "after", ["0", "99", "10", "011", "-1", "x", "", "1.0", "\uff19", "1" * 30, "302", " 1"]
)
async def test_an_unknown_event_cannot_be_resumed_after(tmp_path: Path, after: str) -> None:
    # abi.md 5: "an unknown `after` is EINVAL"
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append([*run_of(1, "r1"), line(100), line(301)])
        await log.durable(301)
        with pytest.raises(Fault, match="EINVAL"):
            await log.reader(after)


async def test_an_id_inside_of_a_text_is_not_found(tmp_path: Path) -> None:
    said = '\n{"type":"delta","id":"7"}\n'
    nested = (
        b'{"type":"tool_call","id":"2","run":"r","call":"c","name":"n","input":{"type":"delta","id":"7"}}\n'
    )
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append([line(1, text=said), nested, line(9)])
        await log.durable(9)
        with pytest.raises(Fault, match="EINVAL"):
            await log.reader("7")


async def test_an_unknown_session_is_empty_and_leaves_no_trace(tmp_path: Path) -> None:
    # abi.md 5: "An unknown session is empty and followed"
    async with store(tmp_path) as sessions:
        log = await sessions.open(address("unheard"))
        reader = await log.reader()
        assert (log.last, reader.behind, os.listdir(tmp_path)) == (0, 0, [])
        log.append([line(1)])
        assert await reader.read() == line(1)


async def test_a_done_is_seen_when_it_is_on_disk_and_not_before(tmp_path: Path) -> None:
    # abi.md 5: "A session that a client saw `done` for is on disk"
    synced: list[int] = []
    sizes: list[int] = []

    def sync(descriptor: int) -> None:
        os.fsync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    async with store(tmp_path, sync=sync) as sessions:
        log = await sessions.open(address())
        reader = await log.reader()
        for n in range(50):
            lines = run_of(log.given + 1, f"r{n}")
            log.append(lines)
            await read_to(reader, lines[-1])
            sizes.append(reader.offset)
            assert max(synced) >= reader.offset
    assert sizes == sorted(set(sizes))


async def test_a_delta_is_seen_although_the_disk_is_slow(tmp_path: Path) -> None:
    held = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def sync(_: int) -> None:
        trio.from_thread.run(held.wait, trio_token=token)

    async with store(tmp_path, sync=sync) as sessions:
        log = await sessions.open(address())
        reader = await log.reader()
        log.append([line(1, "start"), line(2), line(3, "done"), line(4, "start", "r2")])
        assert await read_to(reader, line(2)) == line(1, "start") + line(2)
        while log.last != 4:
            await log.grown()
        assert reader.behind == 0
        held.set()
        assert await read_to(reader, line(4, "start", "r2"))


async def test_durable_is_for_what_was_appended(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append([line(1), line(2)])
        await log.durable(1)
        await log.durable(0)
        with pytest.raises(ValueError, match="never appended"):
            await log.durable(3)


@pytest.mark.parametrize(
    "lines",
    [
        [line(2)],  # not behind the last one
        [line(4), line(3)],
        [line(3), line(3)],
        [line(3).strip()],
        [line(3).strip(), line(4) + b"\n"],
        [b"{}\n"],
        [b'{"id":"3","type":"delta"}\n'],
        [b'{"type":"start","id":"3","run":7}\n'],
        [line(3, text="x" * (1 << 20))],
    ],
)
async def test_what_is_no_event_is_refused_and_leaves_the_log_as_it_was(
    tmp_path: Path, lines: list[bytes]
) -> None:
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append([line(1), line(2)])
        with pytest.raises(ValueError, match=r"event|int"):
            log.append(lines)
        log.append([line(3)])
        await log.durable(3)
        assert await read_to(await log.reader(), line(3)) == line(1) + line(2) + line(3)


async def test_many_sessions_and_readers_get_their_own_in_order(tmp_path: Path) -> None:
    count, rounds = 100, 20
    got: dict[tuple[str, int], bytes] = {}
    async with store(tmp_path, limits=Limits(descriptors=16)) as sessions:
        expected: dict[str, list[bytes]] = {f"s{n}": [] for n in range(count)}
        logs = {name: await sessions.open(address(name)) for name in expected}

        async def follow(name: str, who: int) -> None:
            got[name, who] = await read_to(await logs[name].reader(), line(rounds, text=f"{name} {rounds}"))

        async with trio.open_nursery() as nursery:
            for name in expected:
                for who in range(5):
                    nursery.start_soon(follow, name, who)
            for id in range(1, rounds + 1):
                for name, log in logs.items():
                    expected[name].append(line(id, text=f"{name} {id}"))
                    log.append(expected[name][-1:])
                await trio.lowlevel.checkpoint()
    assert len(got) == count * 5
    for (name, _), data in got.items():
        assert data == b"".join(expected[name])


async def test_a_reader_that_does_not_read_holds_nothing_back(tmp_path: Path) -> None:
    # abi.md 5: "one slow client slows nobody else"
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        slow, quick = await log.reader(), await log.reader()
        for id in range(1, 20_001):
            log.append([line(id)])
            if id % 1000 == 0:
                await log.room()
        assert (await read_to(quick, line(20_000))).count(b"\n") == 20_000
        assert slow.behind == quick.offset
        assert (await read_to(slow, line(20_000))).count(b"\n") == 20_000


async def test_whoever_appends_without_end_is_told_or_waits(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        big = "x" * 1_000_000
        with pytest.raises(Fault, match="EAGAIN"):
            append_each(log, [line(id, text=big) for id in range(1, 100)])
        for id in range(log.given + 1, 100):
            await log.room()
            log.append([line(id, text=big)])
        await log.durable(99)
        assert log.size > 99 * len(big) - 1


async def test_descriptors_are_bounded_and_none_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with store(tmp_path, limits=Limits(descriptors=8)) as sessions:
        during = len(os.listdir("/proc/self/fd"))
        for name in map(str, range(200)):
            log = await fill(sessions, name)
            assert len(await (await log.reader()).read()) == log.size
        await sessions.settle()
        assert len(os.listdir("/proc/self/fd")) <= during + 8
    del log
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_log_is_in_memory_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        assert await sessions.open(address("a")) is log
        await sessions.settle()
        size = log.size
        del log
        assert not sessions._logs
        again = await sessions.open(address("a"))
        assert (again.size, again.last, again.given) == (size, 6, 6)


# The files beside the log.


async def test_the_files_beside_the_log_say_what_it_says(tmp_path: Path) -> None:
    # abi.md 5: "messages.jsonl, events.jsonl, latest.md, state, cwd, created_at, updated_at, meta.json"
    placed = b'{"type":"start","id":"7","run":"r2","model":"debug/echo","cwd":"/srv/data"}\n'
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        await sessions.settle()
        folder = sessions.folder(address("a"))
        assert (folder / "state").read_text() == "done\n"
        assert (folder / "latest.md").read_text() == "the answer\n"
        log.append([placed, line(8, "user", "r2", text="and?"), line(9, "assistant", "r2", text="one\n")])
        log.append([line(10, "assistant", "r2", text="two\n")])
        while log.last != 10:
            await log.grown()
        await sessions.settle()
        assert (folder / "state").read_text() == "active\n"
        assert (folder / "latest.md").read_text() == "one\ntwo\n"
        assert (folder / "cwd").read_text() == "/srv/data\n"
        said = [json.loads(row) for row in (folder / "messages.jsonl").read_text().splitlines()]
        assert [row["role"] for row in said] == ["user", "assistant", "user", "assistant", "assistant"]
        assert list(said[0]) == ["id", "run", "role", "content"]
        log.append([line(11, "error", "r2")])
        await log.durable(11)
        meta = await sessions.show(address("a"))
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
        await sessions.settle()
        folder = sessions.folder(address("a"))
        there = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert len(there) == 8
        for name in there.keys() - {"events.jsonl"}:
            (folder / name).unlink()
        (folder.parent / "index" / "list").unlink()
        await sessions.rebuild(address("a"))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == there
        assert (folder.parent / "index" / "list").read_text() == "a\n"


async def test_folders_and_files_are_private(tmp_path: Path) -> None:
    owned = Space("home/1234", 1234, 1235) if os.geteuid() == 0 else SPACE
    where = Address(owned, "agent", "coder", "s")
    async with store(tmp_path / "root") as sessions:
        log = await sessions.open(where)
        log.append(run_of(1, "r1"))
        await log.durable(6)
        await sessions.settle()
    top = tmp_path / "root" / owned.folder
    for path in [top, *top.rglob("*")]:
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert (found.st_uid, found.st_gid) == (owned.uid, owned.gid), path
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


async def test_the_log_grows_in_place_and_the_rest_is_replaced_as_a_whole(tmp_path: Path) -> None:
    # abi.md 1: "session files are append-only and grow under open readers, so `tail -f` works"
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        await sessions.settle()
        folder = sessions.folder(address("a"))
        with (folder / "events.jsonl").open("rb") as events, (folder / "state").open("rb") as state:
            first = events.read()
            log.append([line(7, "start", "r2")])
            while log.last != 7:
                await log.grown()
            await sessions.settle()
            assert events.read() == line(7, "start", "r2")
            assert (first.count(b"\n"), state.read()) == (6, b"done\n")
        assert (folder / "state").read_bytes() == b"active\n"


# What is there, and what may go.


async def test_sessions_are_listed_newest_first(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        for name in ("a", "b", "c"):
            await fill(sessions, name)
        await fill(sessions, "a")
        await sessions.settle()
        found = await sessions.listed(SPACE, "model", "debug/echo")
        assert [info.address.session for info in found] == ["a", "c", "b"]
        assert {info.state for info in found} == {"done"}
        index = sessions.folder(address("a")).parent / "index"
        assert (index / "list").read_text() == "a\nc\nb\n"
        assert await sessions.listed(SPACE, "agent", "nobody") == []
        await sessions.show(address("b"))  # looking is no use
        await sessions.settle()
        assert (index / "current").read_text() == "a\n"


@pytest.mark.parametrize("name", ["index", "", "..", "a/b", "x.sock", "x.d", ".removed.1", "a" * 65])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    # abi.md 2: "An invalid name is refused where it enters (..., session name), with the rule that it breaks"
    with pytest.raises(Fault, match="EINVAL"):
        address(name)


async def test_a_removed_session_ends_for_readers_and_writers(tmp_path: Path) -> None:
    # abi.md 5: "rm -r of a session directory deletes it"
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        await fill(sessions, "b")
        behind, live = await log.reader(), await log.reader(str(log.last))
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
        await sessions.settle()
        assert sorted(os.listdir(sessions.folder(address("a")).parent)) == ["b", "index"]
        assert (sessions.folder(address("b")).parent / "index" / "list").read_text() == "b\n"
        again = await fill(sessions, "a")
        assert again is not log
        assert again.last == 6


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
            await sessions.settle()
            assert not sessions.folder(address("a")).exists()


async def test_what_is_old_or_too_many_can_be_seen_and_cleared(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        for age, name in enumerate(["default", "oldest", "older", "old", "held", "new"]):
            await fill(sessions, name)
            events = sessions.folder(address(name)) / "events.jsonl"
            os.utime(events, (0, events.stat().st_mtime - 10_000 + age * 1000))
        await sessions.settle()
        held = await sessions.open(address("held"))

        async def names(policy: Policy) -> list[str]:
            return [info.address.session for info in await sessions.expired(SPACE, policy)]

        assert await names(Policy()) == []
        assert await names(Policy(age=7_500)) == ["older", "oldest"]
        assert await names(Policy(count=3)) == ["older", "oldest"]
        assert await names(Policy(count=0)) == ["old", "older", "oldest"]  # and never the newest
        preview = await sessions.expired(SPACE, Policy(count=0))
        await fill(sessions, "old")  # used after all
        removed = await sessions.collect(preview)
        assert [info.address.session for info in removed] == ["older", "oldest"]
        left = await sessions.listed(SPACE, "model", "debug/echo")
        assert {info.address.session for info in left} == {"default", "old", "held", "new"}
        assert held.last == 6


# Temp sessions.


async def test_a_temp_session_leaves_nothing(tmp_path: Path) -> None:
    # abi.md 5: "temp ones in memory only"
    async with store(tmp_path) as sessions:
        log = sessions.temp(address("t"))
        reader = await log.reader()
        log.append(run_of(1, "r1"))
        await log.durable(6)
        assert await read_to(reader, line(6, "done")) == b"".join(run_of(1, "r1"))
        assert (await log.reader("5")).behind == len(line(6, "done"))
        assert sessions.temp(address("t")) is log
        sessions.remove_temp(address("t"))
        assert await reader.read() == b""
        assert sessions._budget.used == 0
    assert os.listdir(tmp_path) == []


def of_user(uid: int, session: str = "t") -> Address:
    return Address(Space(f"temp/{uid}", uid, uid), "model", "debug/echo", session)


async def test_temp_sessions_are_bounded_each_and_together(tmp_path: Path) -> None:
    async with store(tmp_path, limits=Limits(temp_session=1 << 20, temp_total=5 << 20)) as sessions:
        big = "x" * 300_000
        for uid, fits in {1: 3, 2: 3, 3: 3, 4: 3, 5: 3, 6: 2}.items():
            log = sessions.temp(of_user(uid))
            with pytest.raises(Fault, match="ENOSPC"):
                append_each(log, [line(id, text=big) for id in range(1, 10)])
            assert log.last == fits
        sessions.remove_temp(of_user(2))
        sessions.temp(of_user(6)).append([line(3, text=big)])
        with pytest.raises(Fault, match="ENOSPC"):  # empty ones count too
            _ = [sessions.temp(of_user(n)) for n in range(10_000)]


async def test_temp_sessions_of_one_user_are_a_part_of_all(tmp_path: Path) -> None:
    # abi.md 5: "memory per client is bounded"; one user locks out only himself
    async with store(tmp_path, limits=Limits(temp_session=1 << 20, temp_total=4 << 20)) as sessions:
        big = "x" * 300_000
        append_each(sessions.temp(of_user(1, "a")), [line(id, text=big) for id in range(1, 3)])
        with pytest.raises(Fault, match="your temp sessions hold 1 MiB"):
            append_each(sessions.temp(of_user(1, "b")), [line(id, text=big) for id in range(1, 3)])
        append_each(sessions.temp(of_user(2)), [line(id, text=big) for id in range(1, 4)])
        sessions.remove_temp(of_user(1, "a"))
        append_each(sessions.temp(of_user(1, "b")), [line(id, text=big) for id in range(2, 4)])


async def test_what_was_said_before_is_found_from_the_newest_on(tmp_path: Path) -> None:
    # models/driver.py: "the newest messages that fit into so many bytes, oldest first"
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        first = run_of(1, "r1", deltas=300, answer="x" * 9000)
        second = run_of(log.given + 400, "r2", answer="short")
        log.append([*first, *second])
        await log.durable(log.given)
        said = [each for each in (*first, *second) if each.startswith(b'{"type":"message"')]
        assert await log.messages(1 << 20, log.given + 1) == said
        assert await log.messages(1 << 20, 400) == said[:2]  # what comes after is not before
        assert await log.messages(len(said[3]) + len(said[2]), log.given + 1) == said[2:]
        assert await log.messages(len(said[3]) - 1, log.given + 1) == []
        assert await log.messages(1 << 20, 1) == []
    async with store(tmp_path) as sessions:  # and again after a restart
        log = await sessions.open(address())
        assert await log.messages(1 << 20, log.last + 1) == said
