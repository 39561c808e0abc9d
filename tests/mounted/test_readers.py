"""The daemon answers requests of the kernel side by side, even if some wait (cortexfs/tree/readers.py)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

WAITERS = 20


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "tests.mounted.waiting_mount", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
            subprocess.run(["fusermount3", "-u", str(tmp_path)], check=True, timeout=PATIENCE)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            subprocess.run(["fusermount3", "-uzq", str(tmp_path)], check=False, timeout=PATIENCE)


@pytest.fixture
def root(process: subprocess.Popen[str], tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def asking(root: Path) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(WAITERS + 1)
    yield pool
    pool.shutdown(wait=False)  # requests without an answer end with the mount


def test_requests_that_wait_hold_up_no_other(root: Path, asking: ThreadPoolExecutor) -> None:
    waiters = [asking.submit((root / f"waits-{number}").stat) for number in range(WAITERS)]
    for number in range(WAITERS):
        assert not asking.submit((root / "missing").exists).result(PATIENCE)
        asking.submit((root / f"quick-{number}").stat).result(PATIENCE)
    assert not any(waiter.done() for waiter in waiters)
    asking.submit((root / "go").stat).result(PATIENCE)
    assert len({waiter.result(PATIENCE).st_ino for waiter in waiters}) == WAITERS


def test_a_request_that_goes_before_it_is_read_stops_nothing(
    process: subprocess.Popen[str], root: Path, asking: ThreadPoolExecutor
) -> None:
    assert process.stdout
    for _ in range(200):  # more often than pyfuse3 has readers
        asking.submit((root / "vanishes").stat).result(PATIENCE)
        assert asking.submit(process.stdout.readline).result(PATIENCE) == "goes on\n"
    waiters = [asking.submit((root / f"waits-{number}").stat) for number in range(WAITERS)]
    asking.submit((root / "go").stat).result(PATIENCE)
    assert len({waiter.result(PATIENCE).st_ino for waiter in waiters}) == WAITERS


def test_who_asks_without_end_leaves_the_loop_to_others(root: Path, asking: ThreadPoolExecutor) -> None:
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            (root / "quick").stat()

    hammers = [asking.submit(ask) for _ in range(3)]
    try:
        asking.submit((root / "turns").stat).result(PATIENCE)
    finally:
        over.set()
    for each in hammers:
        each.result(PATIENCE)
