"""sessions/checkpoint.py: the state of a long log is kept beside it, and used for that log alone."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cortexfs.core import frames
from cortexfs.core.talk.session import Session
from cortexfs.sessions import checkpoint, disk
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.log_facts import Scan, Scanned
from cortexfs.version import VERSION
from tests.shell.session_stores import address, fill, read_all, run_of, store

OPENING = frames.Start(model="debug/echo")
STATE = b"what its user made of it"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every log worth a checkpoint, and a few bytes enough to recognise a log."""
    monkeypatch.setattr(checkpoint, "STEP", 1)
    monkeypatch.setattr(checkpoint, "_ENDS", 256)


async def kept(root: Path, runs: int = 40) -> Path:
    """Create a log with a checkpoint and one later run, and return its path."""
    async with store(root) as sessions:
        log = await fill(sessions, "a", runs)
        assert isinstance(log, FileLog)
        assert log.is_worth_keeping
        await log.keep(STATE)
        assert not log.is_worth_keeping
        await fill(sessions, "a")
        return log.path


async def opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, FileLog]:
    """Open the log. Returns True if it was read from its checkpoint on, and the log."""
    known: list[Scanned | None] = []
    scan = disk.scan

    def spied(descriptor: int, given: Scanned | None = None) -> Scan:
        known.append(given)
        return scan(descriptor, given)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "scan", spied)
        async with store(root) as sessions:
            log = await sessions.open(address("a"))
            return known != [None], log


async def test_a_log_is_read_from_where_it_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await kept(tmp_path)
    is_short, log = await opened(tmp_path, monkeypatch)
    size, state = log.checkpoint
    assert (is_short, state) == (True, STATE)
    assert 0 < size < log.size == path.stat().st_size
    (path.parent / checkpoint.NAME).unlink()
    is_short, whole = await opened(tmp_path, monkeypatch)
    assert (is_short, whole.checkpoint) == (False, (0, b""))
    assert (vars(log.facts), vars(log.index)) == (vars(whole.facts), vars(whole.index))
    async with store(tmp_path) as sessions:
        assert await read_all(sessions, "a") == path.read_bytes()


def _again(path: Path) -> None:
    (other := path.with_name("other")).write_bytes(path.read_bytes())
    other.rename(path)


def _first(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"7")


def _last(path: Path) -> None:
    data = path.read_bytes()
    whole = path.with_name(checkpoint.NAME).read_bytes()
    size = checkpoint._decoder.decode(whole).scanned.size
    with path.open("r+b") as file:
        file.seek(data.rindex(b"r", 0, size - 2))
        file.write(b"R")


def _shorter(path: Path) -> None:
    os.truncate(path, len(b"".join(run_of(1, "r0"))))


def _other_version(path: Path) -> None:
    beside = path.with_name(checkpoint.NAME)
    beside.write_bytes(beside.read_bytes().replace(VERSION.encode(), b"9.9.9"))


def _damaged(path: Path) -> None:
    path.with_name(checkpoint.NAME).write_bytes(b"\x80")


def _link(path: Path) -> None:
    beside = path.with_name(checkpoint.NAME)
    beside.rename(path.with_name("other"))
    beside.symlink_to("other")


@pytest.mark.parametrize(
    "change", [_again, _first, _last, _shorter, _other_version, _damaged, _link], ids=lambda one: one.__name__
)
async def test_a_checkpoint_of_another_log_is_not_believed(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "the documented files are the only copy"
    path = await kept(tmp_path)
    change(path)
    is_short, log = await opened(tmp_path, monkeypatch)
    assert (is_short, log.checkpoint) == (False, (0, b""))
    assert log.size == path.stat().st_size


async def test_what_is_not_on_disk_is_not_kept(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        log = await fill(sessions, "a")
        assert isinstance(log, FileLog)
        log.append(run_of(log.newest + 1, "more"))
        assert not log.is_worth_keeping


@pytest.mark.parametrize("seed", range(20))
def test_a_session_that_was_kept_is_the_session(seed: int) -> None:
    rng = random.Random(seed)
    lines: list[bytes] = []
    at = 1
    for number in range(rng.randrange(2, 8)):
        at += len(lines) + rng.choice((0, 0, 5))  # this also leaves numbers that no event has
        lines += run_of(at, f"r{number}", rng.randrange(4))
    whole, first, scan = Session(OPENING, str), Session(OPENING, str), Scan()
    part = rng.randrange(len(lines))
    for one in lines[:part]:
        first.replay(one)
        scan.feed(one)
    second = Session(OPENING, str)
    second.restore(first.values())
    again = Scan(Scanned.of(scan.size, scan.facts, scan.index))
    for number, one in enumerate(lines):
        whole.replay(one)
        if number >= part:
            second.replay(one)
            again.feed(one)
            scan.feed(one)
    assert vars(second) == vars(whole)
    assert (again.size, again.read) == (scan.size, scan.read)
    assert vars(again.facts) == vars(scan.facts)
    assert vars(again.index) == vars(scan.index)
