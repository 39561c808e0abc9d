"""200 answers of a provider at a time, at the pace of a model, and other calls to the mount meanwhile.

The server is a process of its own that sends each stream a delta 25 times a second. It sends to a tenth of
the streams at a time, as answers of different callers are not in step. The streams are read by exec, whose
runners cost next to nothing, so only the daemon can run short of time here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.bench import measure
from tests.mounted.ctx_mount import Ctx
from tests.shell.provider_server import SSE, chunks, said

STREAMS = 200
RATE = 25  # deltas a second of each: more than the models of most providers send
GROUPS = 10
CALLS = 300
STATS = 5000
PAUSE = 0.001  # between two looks, so that looks meet the streams at any moment and leave CPU to them


class Figures(NamedTuple):
    """Milliseconds; and deltas a second, which equal those sent if the daemon keeps up."""

    stat: float
    call: float
    alone_stat: float
    alone_call: float
    rate: float
    cpu: float  # of the daemon, per cent of a core

    @property
    def wanted(self) -> float:
        return STREAMS * RATE


def figures(ctx: Ctx) -> Figures:
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    alone_stat, alone_call = _stat(ctx), _call(ctx)
    with measure.serving("tests.bench.streams") as port, contextlib.ExitStack() as stack:
        words = ("--base-url", f"http://127.0.0.1:{port}/v1", "--format", "openai.chat", "--model", "m")
        ctx.ctx("provider", "add", "bench", *words)
        stack.callback(ctx.ctx, "provider", "remove", "bench")
        path = str(ctx.work / "deltas")
        output = stack.enter_context(open(path, "ab"))
        runners = stack.enter_context(_runners(ctx, output.fileno()))
        _until_all_speak(path)
        before, cpu, began = os.path.getsize(path), measure.cpu_ms(ctx.pid), time.perf_counter()
        stat, call = _stat(ctx), _call(ctx)
        took = time.perf_counter() - began
        with open(path, "rb") as heard:
            heard.seek(before)
            deltas = heard.read().count(b'"delta"')
        assert all(runner.poll() is None for runner in runners), "a stream has ended"
        return Figures(
            stat, call, alone_stat, alone_call, deltas / took, (measure.cpu_ms(ctx.pid) - cpu) / took / 10
        )


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def _stat(ctx: Ctx) -> float:
    path, took = ctx.tool("fs.read"), []
    for _ in range(STATS):
        began = time.perf_counter()
        os.stat(path)
        took.append((time.perf_counter() - began) * 1e3)
        time.sleep(PAUSE)  # (PAUSE says why)
    return _p99(took)


def _call(ctx: Ctx) -> float:
    words = [ctx.tool("fs.read"), str(ctx.work / "small")]
    took = []
    for _ in range(CALLS):
        took.append(measure.spawn(words, ctx.environ))
        time.sleep(PAUSE)  # (PAUSE says why)
    return _p99(took)


@contextlib.contextmanager
def _runners(ctx: Ctx, output: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start runners that append to one file, each line by one write."""
    words = [str(ctx.root / "model" / "bench" / "m"), "x"]
    runners = [
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, env=ctx.environ)
        for _ in range(STREAMS)
    ]
    try:
        yield runners
    finally:
        for runner in runners:
            runner.terminate()
        for runner in runners:
            runner.wait()


def _until_all_speak(path: str) -> None:
    end = time.monotonic() + 60
    while True:
        with open(path, "rb") as heard:
            runs = {line.split(b'"run":"')[1].split(b'"')[0] for line in heard if b'"delta"' in line}
        if len(runs) == STREAMS:
            return
        assert time.monotonic() < end, f"{len(runs)} of {STREAMS} streams have begun"
        time.sleep(0.2)  # polling takes CPU that the streams need to begin


def _serve() -> None:
    """Serve without a framework and without a task for each stream: the server is not measured."""
    delta = chunks(said("word "))[0]
    groups: list[list[socket.socket]] = [[] for _ in range(GROUPS)]
    with socket.create_server(("127.0.0.1", 0), backlog=STREAMS) as listener:
        print(listener.getsockname()[1], flush=True)
        listener.setblocking(False)
        number, due = 0, time.perf_counter()
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
                    groups[min(range(GROUPS), key=lambda n: len(groups[n]))].append(stream)
            group = groups[number % GROUPS]
            for stream in list(group):
                try:
                    stream.send(delta)
                except OSError:
                    group.remove(stream)
            number, due = number + 1, due + 1 / RATE / GROUPS
            time.sleep(max(0.0, due - time.perf_counter()))  # the pace of a model


if __name__ == "__main__":
    _serve()
