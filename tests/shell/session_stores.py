"""Helpers of the tests of sessions: events to append, stores to append to, and a small file system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from cortexfs.core import frames
from cortexfs.sessions.layout import Address, Meta, Space
from cortexfs.sessions.log import Log
from cortexfs.sessions.store import SessionLimits, Sessions
from tests.shell.logreader import Reader

SPACE = Space("home/0", os.getuid())


def address(session: str = "default", object: str = "debug/echo") -> Address:
    return Address(SPACE, "model", object, session)


def line(id: int, frame: str = "delta", run: str = "r1", **values: object) -> bytes:
    made: frames.Frame
    match frame:
        case "start":
            made = frames.Start(id=str(id), run=run, model="debug/echo")
        case "user" | "assistant":
            content = [frames.Text(str(values["text"]))]
            made = frames.Message(id=str(id), run=run, role=frame, content=content)
        case "done":
            made = frames.Done(id=str(id), run=run, status="ok")
        case "error":
            made = frames.Done(id=str(id), run=run, status="error", code="EIO")
        case _:
            made = frames.Delta(id=str(id), run=run, text=str(values.get("text", "x" * 32)))
    return frames.encode(made)


def run_of(first: int, run: str, deltas: int = 2, answer: str = "the answer") -> list[bytes]:
    """Returns the events of a whole run: start, the user's message, deltas, the answer, done."""
    return [
        line(first, "start", run),
        line(first + 1, "user", run, text="the question"),
        *(line(first + 2 + n, run=run) for n in range(deltas)),
        line(first + 2 + deltas, "assistant", run, text=answer),
        line(first + 3 + deltas, "done", run),
    ]


class Reports:
    def __init__(self) -> None:
        self.said: list[tuple[Address, str]] = []

    def __call__(self, where: Address, sentence: str) -> None:
        self.said.append((where, sentence))


@asynccontextmanager
async def store(
    root: Path,
    reports: Reports | None = None,
    limits: SessionLimits | None = None,
    sync: Callable[[int], None] = os.fsync,
) -> AsyncIterator[Sessions]:
    """Yields a running store. At the end all sessions that it holds are put away."""
    sessions = Sessions(root, reports or Reports(), limits=limits, sync=sync)
    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        yield sessions
        nursery.cancel_scope.cancel()


async def shown(sessions: Sessions, where: Address) -> Meta:
    """Returns a session's meta.json after bringing it up to date."""
    await sessions._commit.beside.renew(await sessions.open(where))
    return msgspec.json.decode((sessions.folder(where) / "meta.json").read_bytes(), type=Meta)


async def read_to(reader: Reader, end: bytes) -> bytes:
    """Read until the data ends with `end`, and return all of it."""
    got = b""
    while not got.endswith(end):
        got += await reader.read()
    return got


def append_each(log: Log, lines: list[bytes]) -> None:
    for one in lines:
        log.append([one])


async def fill(sessions: Sessions, name: str, runs: int = 1) -> Log:
    log = await sessions.open(address(name))
    for _ in range(runs):
        lines = run_of(log.newest + 1, f"r{log.newest}")
        log.append(lines)
        await log.durable(log.newest)
    return log


async def read_all(sessions: Sessions, name: str = "default") -> bytes:
    log = await sessions.open(address(name))
    reader, got = Reader(log), b""
    while reader.behind:
        got += await reader.read()
    return got


def plant(root: Path, data: bytes, name: str = "default") -> Path:
    """Create a log as another daemon would have left it, and return its path."""
    path = root.joinpath(*address(name).parts) / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


@contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path]:
    """Mount a file system of a few MiB. This needs root; the test is skipped for other users."""
    if os.geteuid():
        pytest.skip("a file system is mounted, which takes root")
    path.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(path), b"tmpfs", 0, f"size={mib}m".encode()):
        pytest.skip(f"no tmpfs can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield path
    finally:
        assert not libc.umount2(bytes(path), 0), "something of it is still open"


def remount(path: Path, *, writable: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = 32 | (0 if writable else 1)  # MS_REMOUNT, MS_RDONLY
    assert not libc.mount(b"tmpfs", bytes(path), b"tmpfs", flags, None), os.strerror(ctypes.get_errno())
