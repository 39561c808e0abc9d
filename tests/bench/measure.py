"""Measures whole commands and loops: medians, pairs, and the memory and CPU of a process."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

DEVNULL = os.open(os.devnull, os.O_RDWR)
TICK = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def as_if_unset() -> Iterator[None]:
    """Drop variables for interpreters and mounts: without compiled files, compiling would be measured."""
    before, sys.dont_write_bytecode = dict(os.environ), False
    for name in before:
        if name.startswith(("CTX_", "PYTHON")) and name not in ("PYTHONHOME", "PYTHONPATH"):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def spawn(words: list[str], environ: dict[str, str], out: int = DEVNULL) -> float:
    """Milliseconds from spawn to exit; the command must succeed."""
    began = time.perf_counter()
    waited(spawned(words, environ, out), words)
    return (time.perf_counter() - began) * 1e3


def imported(python: str, module: str) -> float:
    """Milliseconds of CPU to import the module in an interpreter that has imported nothing."""
    source = f"import time; began = time.process_time(); import {module}; print(time.process_time() - began)"
    words = [python, "-I", "-c", source]
    return statistics.median(float(subprocess.check_output(words)) for _ in range(15)) * 1e3


def spawned(words: list[str], environ: dict[str, str], out: int) -> int:
    """Spawn the command without the extra work of `subprocess`, and return its pid."""
    actions = [(os.POSIX_SPAWN_DUP2, DEVNULL, 0), (os.POSIX_SPAWN_DUP2, out, 1)]
    return os.posix_spawn(words[0], words, environ, file_actions=actions)


def waited(pid: int, words: list[str]) -> None:
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{words} ended with {os.waitstatus_to_exitcode(status)}")


def paired(
    first: Callable[[], float], second: Callable[[], float], pairs: int, warm: int = 10
) -> tuple[float, float, float]:
    """Medians of both and of the ratio first/second, measured in turn so that drift affects both."""
    for _ in range(warm):
        first(), second()
    rows = [(first(), second()) for _ in range(pairs)]
    return (
        statistics.median(a for a, _ in rows),
        statistics.median(b for _, b in rows),
        statistics.median(a / b for a, b in rows),
    )


def parallel(call: Callable[[], float], callers: int, count: int) -> tuple[float, list[float]]:
    """Calls a second from `callers` processes, and each call's milliseconds."""
    gate, bar = os.pipe()
    workers = [_worker(call, count // callers, gate, bar) for _ in range(callers)]
    took: list[float] = []
    began = time.perf_counter()
    os.close(bar)
    for pid, pipe in workers:
        with open(pipe, "rb") as answers:
            took += [float(word) for word in answers.read().split()]
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError("a caller failed, which says above why")
    os.close(gate)
    return len(took) / (time.perf_counter() - began), took


def _worker(call: Callable[[], float], count: int, gate: int, bar: int) -> tuple[int, int]:
    """Fork a caller that begins when `bar` is closed. A process, as threads of one interpreter would start
    their programs one after the other."""
    ours, theirs = os.pipe()
    if pid := os.fork():
        os.close(theirs)
        return pid, ours
    status = 1
    try:
        os.close(ours)
        os.close(bar)
        os.read(gate, 1)
        words = " ".join(str(call()) for _ in range(count))
        with open(theirs, "w") as answers:
            answers.write(words)
        status = 0
    except RuntimeError as error:
        print(error, file=sys.stderr)
    finally:
        os._exit(status)


@contextlib.contextmanager
def serving(module: str) -> Iterator[int]:
    """Run the module as a process of its own, and yield the port that it prints."""
    with subprocess.Popen([sys.executable, "-m", module], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def per_call(loop: Callable[[], object], count: int) -> float:
    """Microseconds for one call of `loop`, the best of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            loop()
        rounds.append((time.perf_counter() - began) / count * 1e6)
    return min(rounds)


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK * 1e3
