"""How the engine's threads share the cores: while there are cores for all of them, each has a core of its
own, and waits for the others by spinning.

Main path: `spin_while_free` starts a thread that looks at /proc/stat, four times a second. While other
processes use a good part of a core, it holds a team of OpenMP threads that sleep. libgomp then counts more
threads than cores, and lets waiting threads sleep at once (its manual, GOMP_SPINCOUNT). Else it binds each
computing thread to a core: the kernel wakes two threads that wait for each other on the same core, where they
take turns while the other core is idle.

Rules: nothing is computed here. An OpenMP runtime other than libgomp is left alone.
This file must never know what the engine computes, and for whom.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cortexfs.host.process.wake_affinity import bind

PERIOD = 0.25  # seconds; /proc/stat counts hundredths
# The parts of a needed core that others use: above the first the engine's threads sleep, below the second
# they spin again. The reader of an answer uses less than a tenth.
CROWDED, FREE = 0.4, 0.2
BUSY = 0.1  # a thread that ran for this part of the time since the last look counts as computing
SEMAPHORE = 64  # bytes; no system's sem_t is larger


def spin_while_free(library: str, threads: int) -> bool:
    """Begins to watch `threads` threads of this library. Returns False if its OpenMP is not libgomp."""
    team = getattr(ctypes.CDLL(library), "GOMP_parallel", None)
    if team is not None:
        threading.Thread(target=_watch, args=[team, threads], daemon=True).start()
    return team is not None


def _watch(team: Callable[..., object], threads: int) -> None:
    cores = os.sched_getaffinity(0)
    loads, spare, placement = used_by_others(), max(0, len(cores) - threads), Placement(cores, threads)
    while True:
        while next(loads) <= spare + CROWDED:
            placement.spread()
        placement.undo()
        with asleep(team):
            next(load for load in loads if load < spare + FREE)


class Placement:
    """The computing threads, each on a core of its own if there are as many cores as threads."""

    def __init__(self, cores: set[int], threads: int) -> None:
        self._cores = cores
        self._threads = threads
        self._look_time = 0  # when, in nanoseconds
        self._times: dict[int, int] = {}  # nanoseconds by thread
        self._placed: tuple[int, ...] = ()

    def spread(self) -> None:
        """Place the threads that computed since the last call. They keep their cores until `undo`."""
        if self._threads != len(self._cores):
            return  # a core that the kernel finds free is better than our choice
        look_time, self._look_time = self._look_time, time.monotonic_ns()
        before, self._times = self._times, _times()
        least = (self._look_time - look_time) * BUSY
        busy = tuple(thread for thread, now in self._times.items() if now - before.get(thread, now) > least)
        if len(busy) == self._threads and busy != self._placed:
            self.undo()
            self._placed = busy
            for thread, core in zip(busy, self._cores, strict=True):
                bind(thread, {core})

    def undo(self) -> None:
        for thread in self._placed:
            bind(thread, self._cores)
        self._placed = ()


def _times() -> dict[int, int]:
    """Returns the nanoseconds that each thread of this process has had a core."""
    found = {}
    for thread in sorted(map(int, os.listdir("/proc/self/task"))):
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat", "rb") as stat:
            found[thread] = int(stat.read().split()[0])
    return found


def used_by_others() -> Iterator[float]:
    """Yields the cores that other processes used in the last period, again and again."""
    clock, busy, own = time.monotonic(), _busy(), time.process_time()
    while True:
        time.sleep(PERIOD)
        before = clock, busy, own
        clock, busy, own = time.monotonic(), _busy(), time.process_time()
        yield (busy - before[1] - (own - before[2])) / (clock - before[0])


def _busy() -> float:
    """Returns the seconds that our cores have worked since the machine began."""
    with open("/proc/stat", "rb") as stat:
        rows = {words[0]: words[1:] for words in map(bytes.split, stat) if words[0].startswith(b"cpu")}
    cores = (rows.get(b"cpu%d" % core, ()) for core in os.sched_getaffinity(0))
    # user, nice, system, idle, waiting for a disk, and the rest; guests are counted with users
    ticks = sum(int(word) for row in cores for word in (*row[:3], *row[5:8]))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def asleep(team: Callable[..., object]) -> Iterator[None]:
    """Hold more threads than there are cores, all waiting for one semaphore."""
    libc = ctypes.CDLL(None)
    semaphore, count = ctypes.create_string_buffer(SEMAPHORE), len(os.sched_getaffinity(0)) + 1
    libc.sem_init(semaphore, 0, 0)
    holder = threading.Thread(target=team, args=[libc.sem_wait, semaphore, count, 0], daemon=True)
    holder.start()
    try:
        yield
    finally:
        for _ in range(count):
            libc.sem_post(semaphore)
        holder.join()  # the team ends with it
