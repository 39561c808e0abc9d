"""The objects' logs, abi.md 3.18."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
import trio

from cortexfs.state import run_logs as module
from cortexfs.state.run_logs import Logs
from tests.waiting import PATIENCE, awaited


def test_what_was_appended_is_there_for_who_looks(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1000)
    assert logs.stat("tool", "t")[0] == 0
    assert logs.stat("tool", "t")[1] == 0
    assert logs.read("tool", "t", 0, 100) == b""
    logs.append("tool", "t", b"one\n")
    logs.append("model", "p/m", b"other\n")
    assert logs.stat("tool", "t")[0] == 4  # sizes are exact even before a flush
    logs.append("tool", "t", b"two\n")
    assert logs.read("tool", "t", 0, 100) == b"one\ntwo\n"
    assert logs.read("tool", "t", 4, 2) == b"tw"
    assert logs.stat("tool", "t")[1] > 0
    assert logs.read("model", "p/m", 0, 100) == b"other\n"


async def test_lines_reach_the_disk_by_themselves(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        logs.append("tool", "t", b"one\n")
        written = tmp_path / "tool" / "t.jsonl"
        await awaited(lambda: written.exists() and written.read_bytes(), lambda seen: seen == b"one\n")
        nursery.cancel_scope.cancel()


def test_a_log_is_rotated_at_its_limit(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 100)
    for number in range(30):
        logs.append("tool", "t", b"line %02d\n" % number)
        assert logs.stat("tool", "t")[0] <= 100
    text = logs.read("tool", "t", 0, 1000)
    assert text.endswith(b"line 29\n")
    older = (tmp_path / "tool" / "t.jsonl.1").read_bytes()
    assert (older + text).splitlines() == [
        b"line %02d" % number for number in range(30 - len((older + text).splitlines()), 30)
    ]


def test_a_log_that_cannot_be_written_is_said_and_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("a file where a directory should be")
    logs = Logs(tmp_path, 100)
    logs.append("tool", "t", b"line\n")
    logs.flush()
    assert "a log of runs cannot be written: Not a directory" in logs.error
    assert "tool" not in logs.error  # everybody may read status, but not everybody may know what ran
    (tmp_path / "tool").unlink()
    logs.append("tool", "t", b"next\n")
    logs.flush()
    assert logs.error == ""  # the fault is over
    assert logs.lost == "a log of runs lacks lines, as it could not be written: Not a directory"


def test_a_disk_that_fills_leaves_no_half_line(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1 << 20)
    logs.append("tool", "t", b"first\n")
    logs.flush()
    # As on a full disk: RLIMIT_FSIZE writes the part that fits and refuses the rest (setrlimit(2)).
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        logs.append("tool", "t", b"second line\n")
        logs.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot be written" in logs.error
    logs.append("tool", "t", b"third\n")
    assert logs.read("tool", "t", 0, 100) == b"first\nthird\n"


def test_a_users_own_lines_are_a_file_that_others_do_not_rotate_away(tmp_path: Path) -> None:
    # abi.md 3.19
    logs = Logs(tmp_path, 100)
    logs.append("tool", "t", b"mine\n", 1)
    for number in range(100):
        logs.append("tool", "t", b"line %02d\n" % number, 2)
        logs.flush()
    own, others = (tmp_path / f"home/{uid}/tool/t.d/log" for uid in (1, 2))
    assert own.read_bytes() == b"mine\n"
    assert 0 < others.stat().st_size <= 100
    assert others.with_name("log.1").stat().st_size <= 100
    assert logs.stat("tool", "t")[0] == 0
    assert {half.stat().st_mode & 0o777 for half in (own, others)} == {0o600}


def test_only_that_users_lines_are_written_for_who_looks(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 100)
    logs.append("tool", "t", b"one\n", 1)
    logs.append("tool", "t", b"two\n", 2)
    logs.settle(1)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["1"]
    logs.settle(2)
    assert (tmp_path / "home/2/tool/t.d/log").read_bytes() == b"two\n"


async def test_how_many_logs_a_user_has_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/ctx.md, Limits: "the least recently written are removed"
    monkeypatch.setattr(module, "MAX_OF_USER", 3)
    logs = Logs(tmp_path, 100)
    for moment, (class_, name) in enumerate([("tool", "a"), ("model", "p/b"), ("agent", "c"), ("tool", "d")]):
        logs.append(class_, name, b"line\n", 7)
        logs.settle(7)
        path = logs._path(module._Log(class_, name, 7))
        os.utime(path, (1000 + moment, 1000 + moment))
    logs.append("tool", "a", b"line\n", 8)  # another user is not affected
    home = tmp_path / "home/7"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        logs.append("tool", "e", b"line\n", 7)
        with trio.fail_after(PATIENCE):
            await awaited(lambda: not (home / "model/p/b.d").exists())
        nursery.cancel_scope.cancel()
    assert sorted(str(path.relative_to(home)) for path in home.rglob("log")) == [
        "agent/c.d/log",
        "tool/d.d/log",
        "tool/e.d/log",
    ]
    assert not (home / "tool/a.d").exists()
    assert (tmp_path / "home/8/tool/a.d/log").exists()


def test_a_folder_that_its_user_has_removed_is_made_again(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 100)
    for _ in range(2):
        logs.append("tool", "t", b"line\n", 1)
        logs.flush()
        log = tmp_path / "home/1/tool/t.d/log"
        assert log.read_bytes() == b"line\n"
        log.unlink()
        log.parent.rmdir()
    assert logs.error == ""
