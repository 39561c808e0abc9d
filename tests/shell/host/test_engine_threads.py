"""The engine's threads are told to sleep while others need their cores."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from cortexfs.host import engine_threads
from tests.waiting import until


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_team_sleeps_and_goes() -> None:
    try:
        team = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except OSError:
        pytest.skip("there is no libgomp here")
    before, cores = threads(), len(os.sched_getaffinity(0))
    with engine_threads.asleep(team):
        until(threads, (before + cores + 1).__eq__)  # libgomp has more than there are cores
    until(threads, before.__eq__)


def test_what_others_use_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert next(cores for cores in engine_threads.used_by_others() if cores > engine_threads.CROWDED)
        finally:
            busy.kill()


def test_another_runtime_is_left_alone() -> None:
    assert not engine_threads.spin_while_free("libc.so.6", 2)
