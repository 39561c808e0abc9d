"""The figures of conversations: plain sockets to debug/echo and debug/script on a real mount.

The peer of a ping is an echo of one line in Trio, in a process of its own, and as short as possible.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from tests.bench import measure
from tests.mounted.ctx_mount import Ctx

BARE = """
import sys, trio
async def echo(stream):
    while data := await stream.receive_some():
        await stream.send_all(data)
async def main(path):
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(path)
    sock.listen()
    print("ready", flush=True)
    await trio.serve_listeners(echo, [trio.SocketListener(sock)])
trio.run(main, sys.argv[1])
"""
DELTAS = 100_000
EACH = 1_000
SESSIONS = 1_000
STUCK_SECONDS = 60


def connected(path: Path | str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(path))
    return stream


def ask(stream: socket.socket, **request: Any) -> None:
    stream.sendall(json.dumps(request).encode() + b"\n")


def is_last(tail: bytes | bytearray) -> bool:
    return b'{"type":"done"' in tail and tail.endswith(b"\n")


def until_done(stream: socket.socket) -> int:
    """Returns how many bytes arrive, up to and with the last line of a run."""
    size, tail = 0, b""
    while not is_last(tail):
        data = stream.recv(1 << 20)
        if not data:
            raise RuntimeError(f"the daemon hung up: {tail!r}")
        size += len(data)
        tail = (tail + data)[-200:]
    return size


def round_trip(stream: socket.socket) -> float:
    """Milliseconds for a line and its answer."""
    began = time.perf_counter()
    stream.sendall(b'{"op":"ping"}\n')
    stream.recv(1 << 16)
    return (time.perf_counter() - began) * 1e3


@contextlib.contextmanager
def bare_echo(path: str) -> Iterator[None]:
    words = [sys.executable, "-c", BARE, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as peer:
        assert peer.stdout
        peer.stdout.readline()
        try:
            yield
        finally:
            peer.kill()


def ping(ctx: Ctx) -> tuple[float, float, float]:
    """Medians of a ping and of a bare echo, both in ms, and of their ratio."""
    path = str(ctx.work / "bare.sock")
    with bare_echo(path), connected(path) as bare, connected(echo(ctx)) as ours:
        return measure.paired(lambda: round_trip(ours), lambda: round_trip(bare), 2000)


def echo(ctx: Ctx) -> Path:
    return ctx.root / "model/debug/echo.sock"


def script(ctx: Ctx) -> Path:
    return ctx.root / "model/debug/script.sock"


def burst(count: int) -> str:
    return json.dumps([{"burst": count, "size": 32}])


def first_delta(ctx: Ctx) -> float:
    """Milliseconds from a send to its first delta, the median of many rounds."""
    took = []
    with connected(echo(ctx)) as stream:
        for _ in range(300):
            began, seen = time.perf_counter(), b""
            ask(stream, op="send", input="one two three", session="first")
            while b'{"type":"delta"' not in seen:
                seen += stream.recv(1 << 16)
            took.append((time.perf_counter() - began) * 1e3)
            while b'{"type":"done"' not in seen:
                seen += stream.recv(1 << 16)
    return statistics.median(took)


def stream_rate(ctx: Ctx) -> float:
    """Delta frames a second to one client."""
    rates = []
    with connected(script(ctx)) as stream:
        for turn in range(5):
            began = time.perf_counter()
            ask(stream, op="send", input=burst(DELTAS), session=f"burst-{turn}")
            until_done(stream)
            rates.append(DELTAS / (time.perf_counter() - began))
    return statistics.median(rates)


def resume_rate(ctx: Ctx) -> float:
    """MB a second when a finished session of DELTAS events is resumed."""
    rates = []
    for turn in range(5):
        with connected(script(ctx)) as stream:
            began = time.perf_counter()
            ask(stream, op="resume", session=f"burst-{turn}")
            rates.append(until_done(stream) / 1e6 / (time.perf_counter() - began))
    return statistics.median(rates)


def frame_cost(ctx: Ctx, sessions: int) -> float:
    """The daemon's CPU per frame, in µs, for SESSIONS messages of EACH frames in as many sessions,
    each with one client."""
    streams = [connected(script(ctx)) for _ in range(sessions)]
    burst_all(streams, 1)  # creates the sessions
    before = measure.cpu_ms(ctx.pid)
    for _ in range(SESSIONS // sessions):
        burst_all(streams, EACH)
    for stream in streams:
        stream.close()
    return (measure.cpu_ms(ctx.pid) - before) * 1e3 / (SESSIONS * EACH)


def burst_all(streams: list[socket.socket], each: int) -> None:
    """Send each client a burst in a session of its own, all at once."""
    left = len(streams)
    with selectors.DefaultSelector() as ready:
        for at, stream in enumerate(streams):
            ready.register(stream, selectors.EVENT_READ, (stream, bytearray()))
            ask(stream, op="send", input=burst(each), session=f"cost-{len(streams)}-{at}")
        while left:
            for key, _ in ready.select(STUCK_SECONDS) or stuck(left):
                peer, tail = key.data
                tail += peer.recv(1 << 20)
                del tail[:-200]  # one line may arrive in two parts
                left -= is_last(tail)


def stuck(left: int) -> NoReturn:
    raise RuntimeError(f"{left} clients wait for a done that does not come")
