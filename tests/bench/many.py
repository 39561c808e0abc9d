"""1,000 answers of a provider at a time, from the first caller's start to the last one's end.

The server is a process of its own that sends each stream a delta every 50 ms, with the time as its text.
All callers write into one pipe. It is read as it fills, and its content is examined afterwards.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
import statistics
import time
from typing import NamedTuple

import msgspec

from tests.bench import measure
from tests.mounted.ctx_mount import Ctx
from tests.shell.provider_server import SSE, USED, chunks, ended, said

STREAMS = 1000
STARTERS = 8
RATE = 20  # deltas a second of each
DELTAS = 60
READ = 1 << 16
CONFIG = f"[limits]\ncalls_per_user = {2 * STREAMS}\nconnections = {4 * STREAMS}\n"


class Figures(NamedTuple):
    took: float  # seconds
    cpu: float  # microseconds of the daemon per delta, while all streams run and none begins or ends
    first: float  # milliseconds from the sending of a stream's first delta to its arrival, the median


def figures(ctx: Ctx) -> Figures:
    with measure.serving("tests.bench.many") as port:
        words = ("--base-url", f"http://127.0.0.1:{port}/v1", "--format", "openai.chat", "--model", "m")
        ctx.ctx("provider", "add", "many", *words)
        try:
            return _figures(ctx)
        finally:
            ctx.ctx("provider", "remove", "many")


def _figures(ctx: Ctx) -> Figures:
    words = [str(ctx.root / "model" / "many" / "m"), "x"]
    output, printed = os.pipe()
    began = time.perf_counter()
    starters = [_starter(words, ctx.environ, printed) for _ in range(STARTERS)]
    os.close(printed)
    read: list[tuple[float, bytes]] = []
    begun = deltas = 0
    looks: list[tuple[int, float]] = []  # when all streams have begun, and when the first has ended
    while data := os.read(output, READ):
        read.append((time.time(), data))
        begun, deltas = begun + data.count(b'"start"'), deltas + data.count(b'"delta"')
        if len(looks) < 2 and (b'"done"' in data if looks else begun == STREAMS):
            looks.append((deltas, measure.cpu_ms(ctx.pid)))
    took = time.perf_counter() - began
    os.close(output)
    for starter in starters:
        measure.waited(starter, words)
    first = _first(read)
    assert len(first) == STREAMS
    (deltas, cpu), (more, later) = looks
    assert more > deltas + STREAMS, "this machine is too busy to begin them while the first one streams"
    return Figures(took, (later - cpu) * 1000 / (more - deltas), statistics.median(first.values()) * 1000)


def _starter(words: list[str], environ: dict[str, str], printed: int) -> int:
    """A process that starts its share of the callers and ends with the last of them. A single starter would
    wait for each exec before the next start, as the daemon opens the file of the program."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        for caller in [measure.spawned(words, environ, printed) for _ in range(STREAMS // STARTERS)]:
            measure.waited(caller, words)
        status = 0
    finally:
        os._exit(status)


def _first(read: list[tuple[float, bytes]]) -> dict[str, float]:
    """Returns the seconds that the first delta of each run was on its way."""
    found: dict[str, float] = {}
    rest = b""
    for at, data in read:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if b'"delta"' in line:
                frame = msgspec.json.decode(line)
                found.setdefault(frame["run"], at - float(frame["text"]))
    return found


def _serve() -> None:
    """Serve without a framework and without a task for each stream: the server is not measured."""
    last = b"".join(chunks(ended(), USED, "[DONE]"))
    due: list[tuple[float, int, int, socket.socket]] = []
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        print(listener.getsockname()[1], flush=True)
        listener.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                while True:
                    stream, _ = listener.accept()
                    stream.setblocking(True)
                    if stream.recv(1 << 16).startswith(b"GET"):  # the list of models, which is empty
                        stream.sendall(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                        stream.close()
                        continue
                    stream.sendall(SSE)
                    heapq.heappush(due, (time.perf_counter(), id(stream), 0, stream))
            while due and due[0][0] <= time.perf_counter():
                at, key, count, stream = heapq.heappop(due)
                if count < DELTAS:
                    stream.send(chunks(said(f"{time.time():.6f} "))[0])
                    heapq.heappush(due, (at + 1 / RATE, key, count + 1, stream))
                else:
                    stream.sendall(last)
                    stream.close()
            time.sleep(0.0005)  # polling without a pause takes the core that the daemon needs


if __name__ == "__main__":
    _serve()
