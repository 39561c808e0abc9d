"""The session store on a disk that is full, failing or read-only."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions.log import Log
from cortexfs.sessions.writer import Commit
from tests.settled import settled
from tests.shell.logreader import Reader
from tests.shell.session_stores import (
    Reports,
    address,
    line,
    plant,
    read_all,
    remount,
    run_of,
    shown,
    small_disk,
    store,
)


async def test_a_full_disk_is_told_and_service_goes_on_when_there_is_room(tmp_path: Path) -> None:
    # issue 3: "ENOSPC becomes an error frame; service goes on when there is room"
    reports = Reports()
    with small_disk(tmp_path / "disk", 1) as disk:
        async with store(disk, reports) as sessions:
            other = await sessions.open(address("other"))
            other.append(run_of(1, "r1"))
            await other.durable(6)
            log = await sessions.open(address())
            log.append(run_of(1, "r1"))
            await log.durable(6)
            await settled(sessions)  # else the derived files of the other session would not fit either
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                _ = [file.write(bytes(4096)) for _ in range(1000)]
            log.append([line(7, "start", "r2"), *(line(id, run="r2") for id in range(8, 200))])
            with pytest.raises(Fault, match=r"ENOSPC.*make room"):
                await log.durable(199)
            with pytest.raises(Fault, match="ENOSPC"):
                log.append([line(200, "error", "r2")])
            with pytest.raises(Fault, match="ENOSPC"):
                await log.room()
            assert log.reset() == 6
            assert tuple(log.facts.active) == ()
            assert await read_all(sessions) == b"".join(run_of(1, "r1"))
            assert [where for where, _ in reports.said] == [address()]
            ballast.unlink()
            again = run_of(201, "r3")
            log.append(again)
            await log.durable(log.newest)
            assert await read_all(sessions) == b"".join(run_of(1, "r1") + again)
        assert (log.path).read_bytes() == b"".join(run_of(1, "r1") + again)
        del log, other


async def test_a_session_that_a_full_disk_refused_leaves_no_empty_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        async with store(disk) as sessions:
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                _ = [file.write(bytes(4096)) for _ in range(1000)]
            log = await sessions.open(address())
            log.append(run_of(1, "r1"))
            with pytest.raises(Fault, match="ENOSPC"):
                await log.durable(6)
            assert log.reset() == 0
            assert not log.path.parent.exists()
            ballast.unlink()
            again = run_of(log.newest + 1, "r2")
            log.append(again)
            await log.durable(log.newest)
            assert log.path.read_bytes() == b"".join(again)
        del log


async def fill_disk(log: Log) -> None:
    while True:
        log.append([line(log.newest + n, text="x" * 1000) for n in range(1, 30)])
        await log.durable(log.newest)


async def test_a_write_that_is_cut_short_leaves_whole_lines(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        async with store(disk) as sessions:
            log = await sessions.open(address())
            with pytest.raises(Fault, match="ENOSPC"):
                await fill_disk(log)
            assert log.path.stat().st_size == log.size
            assert (await read_all(sessions)).count(b"\n") == log.last == log.newest - 29
        del log


async def test_a_read_only_disk_can_be_read_and_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        whole = b"".join(run_of(1, "r1"))
        path = plant(disk, whole + b'{"torn' + b"x" * 500)
        remount(disk, writable=False)
        reports = Reports()
        async with store(disk, reports) as sessions:
            assert await read_all(sessions) == whole
            for name in ("default", "new"):
                log = await sessions.open(address(name))
                log.append([line(log.newest + 1, "start", "r2")])
                with pytest.raises(Fault, match=r"EROFS.*writable"):
                    await log.durable(log.newest)
                assert log.reset() == log.last
            with pytest.raises(Fault, match="EROFS"):
                await sessions.remove(address())
            remount(disk, writable=True)
            log = await sessions.open(address())
            log.append([line(9, "start", "r2")])
            await log.durable(9)
            assert path.read_bytes() == whole + line(9, "start", "r2")
        del log


def failing(times: int) -> Callable[[int], None]:
    """Returns an fsync that fails `times` times."""
    left = [times]

    def sync(descriptor: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(descriptor)

    return sync


async def test_an_fsync_that_fails_once_is_made_good(tmp_path: Path) -> None:
    reports = Reports()
    async with store(tmp_path, reports, sync=failing(1)) as sessions:
        log = await sessions.open(address())
        log.append(run_of(1, "r1"))
        await log.durable(6)
        assert await read_all(sessions) == b"".join(run_of(1, "r1"))
    assert "read again" in reports.said[0][1]


async def test_what_an_fsync_failed_to_write_is_written_once_more(tmp_path: Path) -> None:
    # fsync(2): after a failure a second fsync can succeed without having written what the first should have
    old: list[int] = []

    def sync(descriptor: int) -> None:
        if not old:
            os.utime(descriptor, (0, 1_000_000))
            old.append(os.fstat(descriptor).st_mtime_ns)
            raise OSError(errno.EIO, "Input/output error")
        old.append(os.fstat(descriptor).st_mtime_ns)

    async with store(tmp_path, sync=sync) as sessions:
        log = await sessions.open(address())
        log.append([line(1)])
        await log.durable(1)
        assert old[1] > old[0]


async def test_a_new_session_is_on_disk_with_the_folders_that_lead_to_it(tmp_path: Path) -> None:
    synced: list[Path] = []

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    async with store(tmp_path, sync=sync) as sessions:
        log = await sessions.open(address())
        log.append([line(1)])
        await log.durable(1)
        assert set(synced) == {log.path, *log.path.parents} - {*tmp_path.parents} | {
            tmp_path / "unclean.jsonl"
        }
        synced.clear()
        log.append([line(2)])
        await log.durable(2)
        assert synced == [log.path]


async def test_files_beside_the_log_that_could_not_be_made_are_made_later(tmp_path: Path) -> None:
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        log = await sessions.open(address())
        latest = log.folder / "latest.md"
        for first in (1, 7):
            log.append(run_of(first, f"r{first}"))
            await log.durable(log.newest)
            await settled(sessions)
            if first == 1:
                latest.unlink()
                latest.mkdir()
        assert "out of date" in reports.said[0][1]
        latest.rmdir()
        await shown(sessions, address())
        assert (log.folder / "messages.jsonl").read_bytes().count(b"\n") == 4
        assert latest.read_text() == "the answer\n"


async def test_files_beside_the_log_that_were_half_made_are_made_anew_in_the_next_life(
    tmp_path: Path,
) -> None:
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        for first in (1, 7):
            log.append(run_of(first, f"r{first}"))
            await log.durable(log.newest)
            await settled(sessions)
            if first == 1:
                (log.folder / "latest.md").unlink()
                (log.folder / "latest.md").mkdir()
    (log.folder / "latest.md").rmdir()
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append(run_of(13, "r13"))
        await log.durable(log.newest)
        await shown(sessions, address())
        assert (log.folder / "messages.jsonl").read_bytes().count(b"\n") == 6


async def test_what_was_appended_behind_a_lost_event_is_lost_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, may_write = Commit._write_all, threading.Event()

    def held(self: Commit, jobs: Any) -> None:
        may_write.wait()
        write(self, jobs)

    monkeypatch.setattr(Commit, "_write_all", held)
    with small_disk(tmp_path / "disk", 1) as disk:
        plant(disk, line(1))
        remount(disk, writable=False)
        async with store(disk) as sessions:
            log = await sessions.open(address())
            log.append([line(2)])
            while log.pending:  # until a thread has taken it
                await trio.lowlevel.checkpoint()
            log.append([line(3)])
            may_write.set()
            with pytest.raises(Fault, match="EROFS"):
                await log.durable(3)
            remount(disk, writable=True)
            assert log.reset() == 1
            log.append([line(4)])
            await log.durable(4)
            assert await read_all(sessions) == line(1) + line(4)
        del log


async def test_an_fsync_that_goes_on_failing_lets_nobody_believe_in_a_done(tmp_path: Path) -> None:
    async with store(tmp_path, sync=failing(4)) as sessions:
        log = await sessions.open(address())
        log.append(run_of(1, "r1"))
        with pytest.raises(Fault, match="EIO"):
            await log.durable(6)
        assert await read_all(sessions) == b"".join(run_of(1, "r1")[:-1])
        with pytest.raises(Fault, match="EIO"):
            log.append([line(7)])
        with pytest.raises(Fault, match="EIO"):
            await log.durable(6)
        assert log.reset() == 6
        await log.durable(6)
        assert await read_all(sessions) == b"".join(run_of(1, "r1"))


async def test_events_that_a_failing_disk_lost_are_not_pretended(tmp_path: Path) -> None:
    lost: list[int] = []

    def sync(descriptor: int) -> None:
        if lost and lost.pop():
            os.ftruncate(descriptor, len(line(1)) + 10)
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(descriptor)

    async with store(tmp_path, sync=sync) as sessions:
        log = await sessions.open(address())
        reader = Reader(log)
        lost.append(1)
        log.append([line(1), line(2), line(3)])
        assert await reader.read()
        with pytest.raises(Fault, match="EIO"):
            await log.durable(3)
        with pytest.raises(Fault, match="EIO"):
            await reader.read()
        assert log.reset() == 1
        log.append([line(4)])
        await log.durable(4)
        assert await read_all(sessions) == line(1) + line(4)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
async def test_what_was_given_to_users_is_told_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (given := tmp_path / "home/1000/agent").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    os.chown(given.parent, 1000, 1000)
    async with store(tmp_path):
        pass
    assert f"others belong to users, not to root; run: chown -R root: {tmp_path}" in caplog.text
    assert given.parent.stat().st_uid == 1000
