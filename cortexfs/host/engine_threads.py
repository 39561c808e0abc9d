"""When the engine's threads may wait for each other by spinning: while there are cores for all of them.

Main path: `spin_while_free` starts a thread that looks at /proc/stat, four times a second. While others use
a good part of a core, it holds a team of OpenMP threads that sleep. libgomp then has more threads than there
are cores, and lets those that wait sleep at once (its manual says so of GOMP_SPINCOUNT).

Rules: nothing is computed here. A runtime of OpenMP that is not libgomp is left alone.
This file must never know what the engine computes, and for whom.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PERIOD = 0.25  # seconds; /proc/stat counts hundredths
# Of a core that they need, used by others: what makes the engine's threads sleep, and below what they spin
# again. Who reads an answer takes less than a tenth.
CROWDED, FREE = 0.4, 0.2
SEMAPHORE = 64  # bytes, more than a sem_t has anywhere


def spin_while_free(library: str, threads: int) -> bool:
    """Begins to watch for so many threads of this library; returns False where its OpenMP is not libgomp."""
    team = getattr(ctypes.CDLL(library), "GOMP_parallel", None)
    if team is not None:
        threading.Thread(target=_watch, args=[team, threads], daemon=True).start()
    return team is not None


def _watch(team: Callable[..., object], threads: int) -> None:
    used, left = used_by_others(), max(0, len(os.sched_getaffinity(0)) - threads)
    while True:
        next(cores for cores in used if cores > left + CROWDED)
        with asleep(team):
            next(cores for cores in used if cores < left + FREE)


def used_by_others() -> Iterator[float]:
    """Cores that other processes used in the last period, again and again."""
    clock, busy, ours = time.monotonic(), _busy(), time.process_time()
    while True:
        time.sleep(PERIOD)
        was = clock, busy, ours
        clock, busy, ours = time.monotonic(), _busy(), time.process_time()
        yield (busy - was[1] - (ours - was[2])) / (clock - was[0])


def _busy() -> float:
    """Seconds that the cores which are ours have worked, since the machine began."""
    with open("/proc/stat", "rb") as stat:
        rows = {words[0]: words[1:] for words in map(bytes.split, stat) if words[0].startswith(b"cpu")}
    cores = (rows.get(b"cpu%d" % core, ()) for core in os.sched_getaffinity(0))
    # user, nice, system, idle, waiting for a disk, and the rest; guests are counted with users
    ticks = sum(int(word) for row in cores for word in (*row[:3], *row[5:8]))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def asleep(team: Callable[..., object]) -> Iterator[None]:
    """More threads than there are cores, all of them waiting for one semaphore."""
    libc = ctypes.CDLL(None)
    semaphore, count = ctypes.create_string_buffer(SEMAPHORE), len(os.sched_getaffinity(0)) + 1
    libc.sem_init(semaphore, 0, 0)
    waiting = threading.Thread(target=team, args=[libc.sem_wait, semaphore, count, 0], daemon=True)
    waiting.start()
    try:
        yield
    finally:
        for _ in range(count):
            libc.sem_post(semaphore)
        waiting.join()  # its team goes with it
