"""Data that one user's sessions could pile up, and faults that a clock could cause (docs/attacks.md)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from cortexfs.core import frames
from cortexfs.sessions import beside, writer
from cortexfs.sessions.log import LEAP
from tests.settled import settled
from tests.shell.session_stores import address, line, run_of, store


async def test_sessions_that_come_and_go_leave_no_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # after a crash unclean.jsonl names the sessions to check, and must not grow with every name ever used
    monkeypatch.setattr(writer, "MARKS", 10)
    async with store(tmp_path) as sessions:
        kept = await sessions.open(address("kept"))
        kept.append([line(1, "start")])
        for number in range(40):
            log = await sessions.open(address(f"s{number}"))
            log.append(run_of(1, "r1"))
            await log.durable(log.newest)
            await sessions.remove(log.address)
            del log
        marks = (tmp_path / "unclean.jsonl").read_bytes().split(b"\n")
        named = [msgspec.json.decode(each)["session"] for each in marks if each]
        assert len(named) < 30
        assert "kept" in named


async def test_what_a_crash_left_stays_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 5.30, whatever others did before it was looked at
    monkeypatch.setattr(writer, "MARKS", 10)
    left = address("left")
    tmp_path.joinpath("unclean.jsonl").write_bytes(msgspec.json.encode(left) + b"\n")
    async with store(tmp_path) as sessions:
        for number in range(30):
            log = await sessions.open(address(f"s{number}"))
            log.append(run_of(1, "r1"))
            await log.durable(log.newest)
        assert sessions.unclean == (left,)
        assert b'"left"' in (tmp_path / "unclean.jsonl").read_bytes()


async def test_directories_without_end_leave_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # docs/ctx.md: `../index/by-cwd/HASH`: messages from many directories do not make a file for each
    monkeypatch.setattr(beside, "BY_CWD", 8)
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        for number in range(12):
            start = frames.encode(frames.Start(id=str(2 * number + 1), run=f"r{number}", model="debug/echo"))
            begun = start[:-2] + b',"cwd":"/d%d"}\n' % number
            log.append([begun, line(2 * number + 2, "done", f"r{number}")])
            await log.durable(log.newest)
            await settled(sessions)
        there = list((log.folder.parent / "index" / "by-cwd").iterdir())
        assert len(there) <= 8
        newest = max(there, key=lambda path: path.stat().st_mtime_ns)
        assert newest.read_text() == "default\n"


async def test_ids_are_not_used_again_when_the_clock_went_back(tmp_path: Path) -> None:
    # abi.md 5.20: what was seen before a power failure keeps its meaning, also where the clock starts anew
    async with store(tmp_path) as sessions:
        log = await sessions.open(address())
        log.append(run_of(1, "r1"))
        await log.durable(log.newest)
        last, path = log.last, log.path
        del log
    async with store(tmp_path) as sessions:
        assert (await sessions.open(address())).newest == last
    later = time.time() + 3600
    os.utime(path, (later, later))
    async with store(tmp_path) as sessions:
        assert (await sessions.open(address())).newest == last + LEAP
