"""The session store under failures: kill -9, torn lines, a power failure."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions.layout import Marks
from cortexfs.sessions.log import LEAP
from cortexfs.sessions.log_facts import INDEX_ENTRIES, Index, Scan
from cortexfs.sessions.store import SessionLimits
from cortexfs.state import whole_files
from tests.places import PROJECT
from tests.settled import settled
from tests.shell.logreader import Reader
from tests.shell.session_stores import (
    SPACE,
    Reports,
    address,
    fill,
    line,
    plant,
    read_all,
    run_of,
    shown,
    store,
)

SOAK = float(os.environ.get("CTX_SOAK", "0"))  # the duration of the long form, in seconds


# kill -9


def killed(root: Path, count: int, after: int) -> dict[str, int]:
    """Kill a child once it has shown `after` lines. Returns the bytes that it had shown of each session."""
    command = [sys.executable, "-m", "tests.shell.sessions_child", str(root), str(count)]
    shown: dict[str, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT) as child:
        assert child.stdout
        for number, row in enumerate(child.stdout):
            name, size = row.split()
            shown[name.decode()] = int(size)
            if number == after:
                child.kill()
        assert child.wait() == -signal.SIGKILL
    return shown


async def recovered(root: Path, count: int, shown: dict[str, int]) -> int:
    """Recover as a daemon does at its start, and check each session. Returns the number of cut runs."""
    cut = 0
    async with store(root) as sessions:
        for where in sessions.unclean:
            log = await sessions.open(where)
            for run in tuple(log.facts.active):
                log.append([line(log.newest + 1, "error", run)])
                cut += 1
            await log.durable(log.newest)
            assert not tuple(log.facts.active)
        assert sessions.unclean == ()
        for name in (f"s{n}" for n in range(count)):
            data = await read_all(sessions, name)
            assert len(data) >= shown.get(name, 0)
            check_whole(data)
    assert not (root / "unclean.jsonl").exists()
    return cut


def check_whole(data: bytes) -> None:
    """Check that runs are in order, and whole unless a kill cut them, and that ids have no gap."""
    events = [json.loads(row) for row in data.splitlines()]
    assert [int(event["id"]) for event in events] == list(range(1, len(events) + 1))
    runs: dict[str, list[str]] = {}
    for event in events:
        runs.setdefault(event["run"], []).append(event["type"])
        assert runs[event["run"]][0] == "start"
        if event["type"] == "done" and event["status"] == "ok":
            kinds = [kind for kind in runs[event["run"]] if kind != "delta"]
            assert kinds == ["start", "message", "message", "done"]
    assert all(kinds.count("done") == 1 for kinds in runs.values())


def test_kill_9_loses_nothing_that_was_seen(tmp_path: Path) -> None:
    # abi.md 5.28
    count, end, cut = 8, time.monotonic() + SOAK, 0
    for number in range(100_000):
        if number >= 4 and time.monotonic() >= end:
            break
        root = tmp_path / str(number // 10)  # so that no log gets too long
        shown = killed(root, count, after=random.randrange(400))
        cut += trio.run(recovered, root, count, shown)
    assert cut, "no kill hit a run"


async def test_what_a_crash_left_is_told_to_whoever_opens(tmp_path: Path) -> None:
    # abi.md 5.30
    data = b"".join([*run_of(1, "r1"), line(7, "start", "r2"), line(8, run="r2"), line(9, "start", "r3")])
    plant(tmp_path, data)
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        assert (tuple(log.facts.active), log.last, log.newest) == (("r2", "r3"), 9, 9)
        log.append(
            [line(10, "error", run) for run in tuple(log.facts.active)[:1]] + [line(11, "error", "r3")]
        )
        await log.durable(11)
        assert tuple(log.facts.active) == ()
        assert (await shown(sessions, address())).state == "error"


# Torn lines


async def test_a_torn_last_line_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    # abi.md 5.29
    whole, last = b"".join(run_of(1, "r1")), line(7, text='é\n\u2028"}')
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        for cut in range(len(last)):
            name = f"s{cut}"
            path = plant(tmp_path, whole + last[:cut], name)
            assert await read_all(sessions, name) == whole
            assert path.read_bytes() == whole
            assert len(reports.said) == (1 if cut else 0)
            reports.said.clear()
            log = await sessions.open(address(name))
            log.append([last])
            await log.durable(7)
            assert path.read_bytes() == whole + last


async def test_a_start_without_its_message_is_cut_off(tmp_path: Path) -> None:
    # abi.md 5.29, 5.21. Found: kill -9 can end a write where two pages meet
    whole, (start, message, *_) = b"".join(run_of(1, "r1")), run_of(7, "r2")
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        for cut in range(1, len(message)):
            name = f"s{cut}"
            path = plant(tmp_path, whole + start + message[:cut], name)
            assert await read_all(sessions, name) == whole
            assert (path.read_bytes(), kept_beside(path)) == (whole, [start + message[:cut]])
            log = await sessions.open(address(name))
            assert (tuple(log.facts.active), log.newest) == ((), 6)
        assert f"the last {len(start) + 1} bytes of the log were not written whole" in reports.said[0][1]


async def test_a_start_without_a_byte_of_its_message_is_cut_off_after_a_crash(tmp_path: Path) -> None:
    # abi.md 5.29
    whole, start = b"".join(run_of(1, "r1")), line(7, "start", "r2")
    crashed, kept = plant(tmp_path, whole + start, "crashed"), plant(tmp_path, whole + start, "kept")
    Marks(tmp_path).add(address("crashed"))
    async with store(tmp_path) as sessions:
        assert await read_all(sessions, "crashed") == whole
        assert await read_all(sessions, "kept") == whole + start
    assert (crashed.read_bytes(), kept_beside(crashed)) == (whole, [start])
    assert (kept.read_bytes(), kept_beside(kept)) == (whole + start, [])


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\n", b"\n\n{}\n", b"garbage\nmore", b"\xff" * 3_000_000])
async def test_what_a_power_failure_left_behind_the_last_event_is_cut_off(
    tmp_path: Path, tail: bytes
) -> None:
    whole = b"".join(run_of(1, "r1"))
    path = plant(tmp_path, whole + tail)
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        assert await read_all(sessions) == whole
    assert path.read_bytes() == whole
    assert kept_beside(path) == [tail]
    assert "cut off" in reports.said[0][1]


def kept_beside(path: Path) -> list[bytes]:
    """Returns the data that was cut off the log."""
    return [each.read_bytes() for each in path.parent.glob("events.jsonl.cut-*")]


async def test_a_log_with_the_line_ends_of_dos_loses_nothing(tmp_path: Path) -> None:
    # found: such a log lost 12 events
    data = b"".join(run_of(1, "r1")).replace(b"\n", b"\r\n")
    path = plant(tmp_path, data)
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        log = await sessions.open(address())
        log.append([line(log.newest + 1)])
        await log.durable(log.last)
    assert kept_beside(path) == [data]
    assert next(path.parent.glob("events.jsonl.cut-*")).name in reports.said[0][1]


async def test_what_cannot_be_kept_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, tail = b"".join(run_of(1, "r1")), b'{"type":"del'
    path = plant(tmp_path, whole + tail)

    replace = whole_files.replace

    def no_room(path: Path, *arguments: Any, **options: Any) -> None:
        if ".cut-" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(path, *arguments, **options)

    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        with monkeypatch.context() as patched:
            patched.setattr(whole_files, "replace", no_room)
            assert await read_all(sessions) == whole
            log = await sessions.open(address())
            log.append([line(7)])
            with pytest.raises(Fault, match="ENOSPC"):
                await log.durable(7)
            assert path.read_bytes() == whole + tail
        log.reset()
        log.append([line(8)])
        await log.durable(8)
    assert "cannot be cut off: No space left" in reports.said[0][1]
    assert path.read_bytes() == whole + line(8)
    assert kept_beside(path) == [tail]


async def test_a_full_disk_keeps_no_session_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # found: the session was gone, but its user got ENOSPC, and it took up that user's share until a restart
    replace = whole_files.replace

    def no_room(path: Path, *arguments: Any, **options: Any) -> None:
        if path.parent.name == "index" and next(path.parents[1].glob("*/events.jsonl"), None):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(path, *arguments, **options)

    async with store(tmp_path) as sessions:
        for name in ("a", "b", "c"):
            await fill(sessions, name)
            await shown(sessions, address(name))
        above = sessions.folder(address("a")).parent
        share = await sessions._shares.of(SPACE)
        whole = share.bytes
        with monkeypatch.context() as patched:
            patched.setattr(whole_files, "replace", no_room)
            await sessions.remove(address("a"))
            assert sorted(each.name for each in above.iterdir()) == ["b", "c", "index"]
            assert (share.sessions, share.bytes) == (2, whole * 2 // 3)
        await fill(sessions, "c")
        await shown(sessions, address("c"))
        assert (above / "index" / "list").read_text().split() == ["c", "b"]
        await sessions.remove(address("c"))
        assert (above / "index" / "list").read_text().split() == ["b"]


@pytest.mark.parametrize("preface", [b'{"format":2}\n', b'{"format":2,"of":"sessions"}\n'])
async def test_a_log_of_a_newer_format_is_left_alone_and_said(tmp_path: Path, preface: bytes) -> None:
    data = preface + b"".join(run_of(1, "r1")) + b"\0\0"
    path = plant(tmp_path, data)
    async with store(tmp_path) as sessions:
        with pytest.raises(Fault, match=r"ENOTSUP: .* format 2, of a newer CortexFS"):
            await sessions.open(address())
        assert path.read_bytes() == data
        assert kept_beside(path) == []
        await sessions.remove(address())
    assert not path.exists()


async def test_a_damaged_line_in_the_middle_is_reported_and_left_alone(tmp_path: Path) -> None:
    data = line(1) + b'{"type":"delta","id":"2","te\n' + line(3) + line(2) + line(4)
    path = plant(tmp_path, data)
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        assert await read_all(sessions) == data
        log = await sessions.open(address())
        assert log.last == 4
        assert await log.place(4) == len(data) - len(line(4))
    assert path.read_bytes() == data
    places = f"{len(line(1))}, {len(data) - len(line(2) + line(4))}"
    said = f"lines of the log are damaged, at byte {places}; they are left as they are"
    assert {sentence for _, sentence in reports.said} == {said}


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_a_scan_finds_the_same_whatever_the_pieces(piece: int) -> None:
    data = b"".join([*run_of(1, "r1", 30), b"bad\n", *run_of(40, "r2", 3)[:-1], b'{"torn'])
    scan = Scan()
    for at in range(0, len(data), piece):
        scan.feed(data[at : at + piece])
    assert scan.size == len(data) - 6
    assert len(scan.damaged) == 1
    assert (scan.facts.last, scan.facts.runs, list(scan.facts.active)) == (45, 2, ["r2"])
    at, length = scan.facts.latest[0]
    assert json.loads(data[at : at + length])["content"][0]["text"] == "the answer"


def test_a_file_that_is_one_endless_line_takes_no_memory() -> None:
    scan = Scan()
    scan.feed(line(1))
    for _ in range(8):
        scan.feed(b"x" * (1 << 20))
        assert len(scan._rest) <= 2 << 20
    scan.feed(b"\n" + line(2))
    assert (scan.facts.last, scan.damaged[0]) == (2, len(line(1)))
    assert scan.size == scan.read


def test_an_index_does_not_grow_with_the_log() -> None:
    index = Index()
    for id in range(1, 200_000):
        index.add(id, id * 100_000)
    assert len(index._ids) < INDEX_ENTRIES
    for id in (1, 2, 500, 99_999, 199_999):
        assert index.before(id) <= id * 100_000
    assert index.before(199_999) > 199_000 * 100_000


# After a power failure


async def test_ids_that_a_power_failure_took_are_not_used_again(tmp_path: Path) -> None:
    path = plant(tmp_path, line(1) + line(2))
    async with store(tmp_path) as sessions:
        assert (await sessions.open(address())).newest == 2
    os.utime(path, (0, 1_000_000))  # before this machine started
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        assert (log.last, log.newest) == (2, 2 + LEAP)
        log.append([line(log.newest + 1)])
        await log.durable(log.newest)
        assert await log.place(3) == len(line(1) + line(2))
        assert (await log.lines(await log.place(3))) == line(log.newest)


# Work that continues


async def test_a_message_that_nobody_understands_spoils_nothing(tmp_path: Path) -> None:
    strange = b'{"type":"message","id":"7","run":"r2","role":"assistant","content":{"text":[]}}\n'
    plant(tmp_path, b"".join(run_of(1, "r1")) + strange)
    reports = Reports()
    async with store(tmp_path, reports) as sessions:
        meta = await shown(sessions, address())
        assert (meta.messages, meta.last) == (3, "7")
        assert (sessions.folder(address()) / "messages.jsonl").read_bytes().count(b"\n") == 3
    assert reports.said == []


async def test_stopping_puts_away_what_was_appended(tmp_path: Path) -> None:
    # abi.md 8.10
    synced: list[int] = []
    async with store(tmp_path, sync=lambda descriptor: synced.append(descriptor)) as sessions:
        logs = [await sessions.open(address(f"s{n}")) for n in range(20)]
        for log in logs:
            log.append([line(1, "start"), line(2)])
    assert len(set(synced)) >= 20
    for log in logs:
        assert log.path.read_bytes() == line(1, "start") + line(2)
        assert (log.folder / "state").read_text() == "active\n"


async def test_files_made_before_a_crash_are_made_anew(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append(run_of(1, "r1"))
        await log.durable(6)
        await settled(sessions)
        folder, marks = log.folder, (tmp_path / "unclean.jsonl").read_bytes()
    whole = (folder / "messages.jsonl").read_bytes()
    (folder / "messages.jsonl").write_bytes(whole[:-9])
    (tmp_path / "unclean.jsonl").write_bytes(marks + b'["torn')
    del log
    async with store(tmp_path) as sessions:
        assert sessions.unclean == (address(),)
        await shown(sessions, address())
        assert (folder / "messages.jsonl").read_bytes() == whole


async def test_many_sessions_take_few_descriptors(tmp_path: Path) -> None:
    count = 10_000 if SOAK else 300
    async with store(tmp_path, limits=SessionLimits(descriptors=64)) as sessions:
        before = len(os.listdir("/proc/self/fd"))
        logs = [await sessions.open(address(f"s{n}", "debug/many")) for n in range(count)]
        for log in logs:
            log.append([line(1)])
        await settled(sessions)
        assert len(os.listdir("/proc/self/fd")) <= before + 64
        for log in logs:
            assert await Reader(log).read() == line(1)
        assert len(os.listdir("/proc/self/fd")) <= before + 64
