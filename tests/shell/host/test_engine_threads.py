"""The engine's threads sleep while other programs need their cores."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cortexfs.host import engine_threads
from tests.waiting import until


def count() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_team_sleeps_and_goes() -> None:
    try:
        team = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except OSError:
        pytest.skip("there is no libgomp here")
    before, cores = count(), len(os.sched_getaffinity(0))
    with engine_threads.asleep(team):
        until(count, (before + cores + 1).__eq__)  # libgomp starts more threads than there are cores
    until(count, before.__eq__)


def test_what_others_use_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert next(cores for cores in engine_threads.used_by_others() if cores > engine_threads.CROWDED)
        finally:
            busy.kill()


class Computing:
    """Two threads that run in turns, wherever the kernel places them."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self._compute) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _compute(self) -> None:
        while not self.over.is_set():
            pass

    def cores(self) -> list[set[int]]:
        return [os.sched_getaffinity(thread.native_id or 0) for thread in self._threads]

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def computing() -> Iterator[Computing]:
    made = Computing()
    yield made
    made.end()


def placed(placement: engine_threads.Placement, computing: Computing, wanted: list[set[int]]) -> bool:
    placement.spread()
    return sorted(computing.cores(), key=min) == wanted


def test_threads_that_compute_have_a_core_each_until_others_come(computing: Computing) -> None:
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    if len(cores) < 2:
        pytest.skip("there is one core")
    placement = engine_threads.Placement(cores, 2)
    until(lambda: placed(placement, computing, [{core} for core in sorted(cores)]))
    here = os.sched_getaffinity(0)
    assert cores <= here  # no other thread was bound
    placement.undo()
    assert computing.cores() == [cores, cores]


def test_threads_are_bound_to_no_core_where_there_are_more_cores_than_threads(computing: Computing) -> None:
    cores = os.sched_getaffinity(0)
    placement = engine_threads.Placement(cores, len(cores) - 1)
    for _ in range(2):
        placement.spread()
    assert computing.cores() == [cores, cores]


def test_another_runtime_is_left_alone() -> None:
    assert not engine_threads.spin_while_free("libc.so.6", 2)
