"""The objects' logs, abi.md 3: "bounded by rotation"."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import trio

from cortexfs.logs import Logs
from tests.waiting import PATIENCE, awaited


def test_what_was_appended_is_there_for_who_looks(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1000)
    assert logs.size("tool", "t") == 0
    assert logs.mtime("tool", "t") == 0
    assert logs.read("tool", "t", 0, 100) == b""
    logs.append("tool", "t", b"one\n")
    logs.append("model", "p/m", b"other\n")
    assert logs.size("tool", "t") == 4  # before any flush: sizes are exact
    logs.append("tool", "t", b"two\n")
    assert logs.read("tool", "t", 0, 100) == b"one\ntwo\n"
    assert logs.read("tool", "t", 4, 2) == b"tw"
    assert logs.mtime("tool", "t") > 0
    assert logs.read("model", "p/m", 0, 100) == b"other\n"


async def test_lines_reach_the_disk_by_themselves(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        logs.append("tool", "t", b"one\n")
        with trio.fail_after(PATIENCE):
            await awaited((tmp_path / "tool" / "t.jsonl").exists)
        assert (tmp_path / "tool" / "t.jsonl").read_bytes() == b"one\n"
        nursery.cancel_scope.cancel()


def test_a_log_is_rotated_at_its_limit(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 100)
    for number in range(30):
        logs.append("tool", "t", b"line %02d\n" % number)
        assert logs.size("tool", "t") <= 100
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
    assert "the log of tool/t cannot be written" in logs.error
    (tmp_path / "tool").unlink()
    logs.append("tool", "t", b"next\n")
    logs.flush()
    assert logs.error == ""  # it is over


def test_a_disk_that_fills_leaves_no_half_line(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1 << 20)
    logs.append("tool", "t", b"first\n")
    logs.flush()
    # As full as a disk gets: RLIMIT_FSIZE writes what fits and refuses the rest (setrlimit(2)).
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
