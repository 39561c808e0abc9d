"""The logs of sessions: appending to them, reading them, and their former messages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.sessions.store import SessionLimits
from tests.settled import settled
from tests.shell.logreader import Reader, grown
from tests.shell.session_stores import address, append_each, fill, line, read_to, run_of, store


async def test_what_is_appended_is_the_file_and_what_is_read(tmp_path: Path) -> None:
    # design: "one append-only log per session is buffer, history and resume source"
    lines = run_of(1, "r1")
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append(lines)
        await log.durable(log.newest)
        assert (sessions.folder(address()) / "events.jsonl").read_bytes() == b"".join(lines)
        assert await read_to(Reader(log), lines[-1]) == b"".join(lines)


async def test_a_reader_catches_up_and_follows_without_gap_or_duplicate(tmp_path: Path) -> None:
    # abi.md 5.18
    lines = [line(id) for id in range(1, 2001)]
    got: dict[int, bytes] = {}
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())

        async def follow(after: int, started: trio.TaskStatus[None]) -> None:
            reader = Reader(log, await log.place(after + 1))
            started.started()
            got[after] = await read_to(reader, lines[-1])

        async with trio.open_nursery() as nursery:
            for at in range(0, 2000, 100):
                while log.last < at:
                    await grown(log)
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
        await log.durable(log.newest)
        for at, before in enumerate(lines[:-1]):
            reader = Reader(log, await log.place(int(json.loads(before)["id"]) + 1))
            assert await read_to(reader, lines[-1]) == b"".join(lines[at + 1 :])
        assert Reader(log, await log.place(302)).behind == 0


async def test_an_id_inside_of_a_text_is_not_found(tmp_path: Path) -> None:
    said = '\n{"type":"delta","id":"7"}\n'
    nested = (
        b'{"type":"tool_call","id":"2","run":"r","call":"c","name":"n","input":{"type":"delta","id":"7"}}\n'
    )
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append([line(1, text=said), nested, line(9)])
        await log.durable(9)
        assert await log.place(7) == log.size - len(line(9))


async def test_an_unknown_session_is_empty_and_leaves_no_trace(tmp_path: Path) -> None:
    # abi.md 5.19
    async with store(tmp_path) as sessions:
        log = await sessions.open(address("unheard"))
        reader = Reader(log)
        assert (log.last, reader.behind, os.listdir(tmp_path)) == (0, 0, [])
        log.append([line(1)])
        assert await reader.read() == line(1)


async def test_a_done_is_seen_when_it_is_on_disk_and_not_before(tmp_path: Path) -> None:
    # abi.md 5.28
    synced: list[int] = []
    sizes: list[int] = []

    def sync(descriptor: int) -> None:
        os.fsync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    async with store(tmp_path, sync=sync) as sessions:
        log = await sessions.open(address())
        reader = Reader(log)
        for n in range(50):
            lines = run_of(log.newest + 1, f"r{n}")
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
        reader = Reader(log)
        log.append([line(1, "start"), line(2), line(3, "done"), line(4, "start", "r2")])
        assert await read_to(reader, line(2)) == line(1, "start") + line(2)
        while log.last != 4:
            await grown(log)
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
        [line(2)],  # its id does not follow the last id
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
        assert await read_to(Reader(log), line(3)) == line(1) + line(2) + line(3)


async def test_many_sessions_and_readers_get_their_own_in_order(tmp_path: Path) -> None:
    count, rounds = 100, 20
    got: dict[tuple[str, int], bytes] = {}
    async with store(tmp_path, limits=SessionLimits(descriptors=16)) as sessions:
        expected: dict[str, list[bytes]] = {f"s{n}": [] for n in range(count)}
        logs = {name: await sessions.open(address(name)) for name in expected}

        async def follow(name: str, who: int) -> None:
            got[name, who] = await read_to(Reader(logs[name]), line(rounds, text=f"{name} {rounds}"))

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
    # abi.md 5.15
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        slow, quick = Reader(log), Reader(log)
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
        for id in range(log.newest + 1, 100):
            await log.room()
            log.append([line(id, text=big)])
        await log.durable(99)
        assert log.size > 99 * len(big) - 1


async def test_descriptors_are_bounded_and_none_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with store(tmp_path, limits=SessionLimits(descriptors=8)) as sessions:
        during = len(os.listdir("/proc/self/fd"))
        for name in map(str, range(200)):
            log = await fill(sessions, name)
            assert len(await Reader(log).read()) == log.size
        await settled(sessions)
        assert len(os.listdir("/proc/self/fd")) <= during + 8
    del log
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_log_is_in_memory_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        assert await sessions.open(address("a")) is log
        await settled(sessions)
        size = log.size
        del log
        assert not sessions._logs
        again = await sessions.open(address("a"))
        assert (again.size, again.last, again.newest) == (size, 6, 6)


async def test_what_was_said_before_is_found_from_the_newest_on(tmp_path: Path) -> None:
    # models/ask/driver.py: "the newest former messages of the session that fit into `room` bytes"
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        first = run_of(1, "r1", deltas=300, answer="x" * 9000)
        second = run_of(log.newest + 400, "r2", answer="short")
        log.append([*first, *second])
        await log.durable(log.newest)
        said = [each for each in (*first, *second) if each.startswith(b'{"type":"message"')]
        assert await log.messages(1 << 20, log.newest + 1) == said
        assert await log.messages(1 << 20, 400) == said[:2]  # later messages are not part of the history
        assert await log.messages(len(said[3]) + len(said[2]), log.newest + 1) == said[2:]
        assert await log.messages(len(said[3]) - 1, log.newest + 1) == []
        assert await log.messages(1 << 20, 1) == []
    async with store(tmp_path) as sessions:  # and again after a restart
        log = await sessions.open(address())
        assert await log.messages(1 << 20, log.last + 1) == said
