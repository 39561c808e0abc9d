"""Appends to sessions until a test kills it: `python -m tests.shell.sessions_child ROOT COUNT`.

It prints `<session> <bytes>` whenever its own reader has read the session's log up to this byte.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import trio

from cortexfs.sessions.log import Log
from cortexfs.sessions.store import Sessions
from tests.shell.logreader import Reader, grown
from tests.shell.session_stores import Reports, address, run_of, store


async def write(log: Log) -> None:
    while True:
        first = log.newest + 1
        lines = run_of(first, f"r{first}", deltas=random.randrange(20), answer="a" * random.randrange(3000))
        while lines:
            count = random.randrange(2, 6)  # a run has at least one event after its start
            await log.room()
            log.append(lines[:count])
            lines = lines[count:]
            while log.last < log.newest:
                await grown(log)
        await log.durable(log.newest)


async def show(name: str, log: Log) -> None:
    reader = Reader(log)
    while await reader.read():
        os.write(1, f"{name} {reader.offset}\n".encode())


async def main(root: Path, count: int) -> None:
    async with store(root, Reports()) as sessions, trio.open_nursery() as nursery:
        for name in (f"s{n}" for n in range(count)):
            await begin(sessions, nursery, name)


async def begin(sessions: Sessions, nursery: trio.Nursery, name: str) -> None:
    log = await sessions.open(address(name))
    nursery.start_soon(write, log)
    nursery.start_soon(show, name, log)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
