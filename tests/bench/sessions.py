"""The figures of the session store: `python -m tests.bench.sessions [DIRECTORY]`.

In one process, as in the daemon: an owner appends, readers read. The figures contain neither the encoding
of frames nor sockets. DIRECTORY chooses the disk; fsync is real.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import trio

from cortexfs.sessions.log import Log
from cortexfs.sessions.store import Sessions
from tests.settled import settled
from tests.shell.logreader import Reader
from tests.shell.session_stores import address, line, run_of, store

EVENTS = 200_000
BATCH = 20  # events appended at once; other tasks get their turn between two batches
LINES = [line(id) for id in range(1, EVENTS + 1)]


async def follow(reader: Reader, size: int) -> None:
    while reader.offset < size:
        await reader.read()


async def produce(log: Log, lines: list[bytes]) -> None:
    for at in range(0, len(lines), BATCH):
        await log.room()
        log.append(lines[at : at + BATCH])
        await trio.lowlevel.checkpoint()


async def stream(sessions: Sessions, label: str, count: int) -> tuple[float, float]:
    """EVENTS deltas through `count` sessions with a live reader each: events a second, CPU µs an event."""
    logs = [await sessions.open(address(f"{label}-{n}")) for n in range(count)]
    for log in logs:
        log.append(LINES[:1])
    await settled(sessions)
    lines = LINES[1 : EVENTS // count]
    size = sum(map(len, lines)) + len(LINES[0])
    readers = [Reader(log) for log in logs]
    began, cpu = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for log, reader in zip(logs, readers, strict=True):
            nursery.start_soon(follow, reader, size)
            nursery.start_soon(produce, log, lines)
    took = time.perf_counter() - began
    return EVENTS / took, 1e6 * (time.process_time() - cpu) / EVENTS


async def resume(sessions: Sessions, root: Path) -> None:
    log = await sessions.open(address("resumed"))
    await produce(log, LINES[:100_000])
    await log.durable(100_000)
    await settled(sessions)
    size = log.size
    del log
    began = time.perf_counter()
    log = await sessions.open(address("resumed"))
    opened = time.perf_counter() - began
    began = time.perf_counter()
    await follow(Reader(log), size)
    read = time.perf_counter() - began
    began = time.perf_counter()
    await log.place(100_000)
    found = time.perf_counter() - began
    print(
        f"resume of 100,000 events: {size / read / 1e6:.0f} MB/s read, {size / opened / 1e6:.0f} MB/s opened"
    )
    print(f"resume after a late event: {found * 1e3:.2f} ms to its place")


async def first_delta(sessions: Sessions) -> None:
    log = await sessions.open(address("latency"))
    reader = Reader(log)
    seen: list[float] = []
    kept: list[float] = []
    for n in range(300):
        lines = run_of(log.newest + 1, f"r{n}")
        began = time.perf_counter()
        log.append(lines[:3])
        await reader.read()
        seen.append(time.perf_counter() - began)
        log.append(lines[3:])
        await log.durable(log.newest)
        kept.append(time.perf_counter() - began)
        reader.offset = log.visible
    print(f"append to seen: {sorted(seen)[150] * 1e3:.2f} ms")
    print(f"a whole run, append to durable: {sorted(kept)[150] * 1e3:.2f} ms")


async def commit(sessions: Sessions, count: int) -> None:
    logs = [await sessions.open(address(f"commit-{n}")) for n in range(count)]
    for number in range(2):
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for log in logs:
                log.append(run_of(log.newest + 1, f"r{log.newest}"))
                nursery.start_soon(log.durable, log.newest)
        took = time.perf_counter() - began
        kind = "in new sessions" if number == 0 else "in these"
        print(f"{count} runs at once {kind}, all durable: {took:.2f} s, {count / took:.0f} runs/s")


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main(root: Path) -> None:
    async with store(root) as sessions:
        await stream(sessions, "warm", 1)
        await settled(sessions)
        before = memory()
        for count in (1, 10, 100, 1000):
            rate, cost = await stream(sessions, str(count), count)
            print(
                f"{count:>4} sessions, a live reader each: {rate:>9,.0f} deltas/s, {cost:.2f} µs CPU an event"
            )
            await settled(sessions)
        print(f"memory grew by {memory() - before:.0f} MiB")
        await resume(sessions, root)
        await first_delta(sessions)
        await commit(sessions, 1000)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
        trio.run(main, Path(directory))
