"""Many clients at once, and clients that come and go: no client starves, no resource is left behind.

abi.md 5.15, 5.25. `make test` runs a tenth of the load, CTX_SOAK all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.measure import rss_mib
from tests.mounted.crowd import Client, Crowd
from tests.mounted.ctx_mount import Ctx, mounted
from tests.waiting import PATIENCE, SOAK, until

PROJECT = Path(__file__).parent.parent.parent
MOST_MIB = 300  # the memory that a daemon with a thousand busy clients may use
STEPS, BURST = 40, 20


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    """A mount that starts empty, with the default configuration."""
    with mounted(python) as mount:
        yield mount


def of(short: int, full: int) -> int:
    return full if SOAK else short


def socket_of(ctx: Ctx, model: str = "script") -> Path:
    return ctx.root / "model" / "debug" / f"{model}.sock"


def message(session: str, steps: object, **fields: object) -> dict[str, object]:
    return {"op": "send", "session": session, "input": json.dumps(steps), **fields}


def stream(session: str, **fields: object) -> dict[str, object]:
    return message(session, [{"burst": BURST}, {"sleep": 0.05}] * STEPS, **fields)


@contextlib.contextmanager
def crowded(ctx: Ctx, count: int) -> Iterator[Crowd]:
    crowd = Crowd(Client(socket_of(ctx)) for _ in range(count))
    try:
        yield crowd
    finally:
        crowd.close()


def sockets(pid: int) -> int:
    """Returns the number of sockets that a process has open."""
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(entry.path).startswith("socket:")
    return found


def at_rest(ctx: Ctx) -> None:
    """Wait until no run is active, by a status that was made after this call began."""
    first = ctx.status["uptime"]
    until(lambda: ctx.status["uptime"], lambda now: now != first)
    ctx.at_rest()


def in_memory(ctx: Ctx) -> int:
    return int(ctx.status["sessions"].split()[0])


def test_all_are_served_alike(ctx: Ctx) -> None:
    # All clients of one user stream at once, each in its own session.
    with crowded(ctx, of(100, 1000)) as crowd:
        for number, client in enumerate(crowd.clients):
            client.ask(stream(f"s{number}"))
        crowd.listen(lambda: len(crowd.finished) > 0)
        most = rss_mib(ctx.pid)
        crowd.listen(lambda: not crowd.unfinished)
        took = time.monotonic() - crowd.began
        most = max(most, rss_mib(ctx.pid))
        assert all(client.statuses == ["ok"] for client in crowd.clients)
        assert {client.deltas for client in crowd.clients} == {STEPS * BURST}
    rates = sorted(client.rate for client in crowd.clients)
    share = rates[0] / statistics.median(rates)
    total = STEPS * BURST * len(crowd.clients)
    print(f"{total / took:.0f} deltas/s, {most:.0f} MiB, the slowest at {share:.2f} of the median")
    assert most <= MOST_MIB
    if SOAK:
        assert share >= 0.5, rates


def test_one_that_never_reads_and_one_that_sends_a_byte_at_a_time(ctx: Ctx) -> None:
    # abi.md 5.15
    pid, before = ctx.pid, rss_mib(ctx.pid)
    many = of(100_000, 300_000)
    deaf, slow = Client(socket_of(ctx)), Client(socket_of(ctx))
    deaf.ask(message("deaf", [{"burst": many, "size": 200}]))
    line = list(json.dumps(stream("slow")).encode() + b"\n")
    with crowded(ctx, of(50, 500)) as crowd, deaf.socket, slow.socket:
        for number, client in enumerate(crowd.clients):
            client.ask(stream(f"s{number}"))
        while crowd.unfinished:
            if len(line) > 1:
                slow.socket.send(bytes([line.pop(0)]))
            crowd.step()
        assert all(client.statuses == ["ok"] for client in crowd.clients)
        at_rest(ctx)
        print(
            f"{rss_mib(pid) - before:.1f} MiB more, and an answer of {many * 200 >> 20} MiB that is not read"
        )
        assert rss_mib(pid) < before + of(16, 100)
        slow.socket.sendall(bytes(line))
        served = Crowd([deaf, slow])
        served.listen(lambda: not served.unfinished)
        assert (slow.statuses, slow.deltas) == (["ok"], STEPS * BURST)
        assert (deaf.statuses, deaf.deltas) == (["ok"], many)


def test_one_that_only_asks(ctx: Ctx) -> None:
    # abi.md 5.25
    pid, before = ctx.pid, rss_mib(ctx.pid)
    asking = Client(socket_of(ctx))
    asking.socket.setblocking(False)
    pings = b'{"op":"ping"}\n' * 1000
    sent = 0
    with asking.socket, contextlib.suppress(BlockingIOError):
        while sent < 100 << 20:  # far more than all buffers on the way hold
            sent += asking.socket.send(pings)
    assert sent < 100 << 20
    assert rss_mib(pid) < before + 8


def come_and_go(ctx: Ctx, count: int) -> None:
    """Connect and leave `count` times, in turn silent, answered, in mid-line and half-closed."""
    for number in range(count):
        with Client(socket_of(ctx, "echo")).socket as client:
            match number % 4:
                case 1:
                    client.sendall(b'{"op":"ping"}\n')
                    assert b"pong" in client.recv(4096)
                case 2:
                    client.sendall(b'{"op":"pi')
                case 3:
                    client.sendall(b'{"op":"ping"}')
                    client.shutdown(1)
                    assert b"pong" in client.recv(4096)


def test_connections_that_come_and_go(ctx: Ctx) -> None:
    # abi.md 5.25
    come_and_go(ctx, 200)
    connections, before = sockets(ctx.pid), rss_mib(ctx.pid)
    come_and_go(ctx, of(500, 10_000))
    until(lambda: sockets(ctx.pid), lambda now: now <= connections)
    assert rss_mib(ctx.pid) < before + 4


def temporary(ctx: Ctx, count: int) -> None:
    """Run `count` sessions that end with their connections, some when done and some in mid-run."""
    with crowded(ctx, 10) as crowd:
        for number, client in enumerate(crowd.clients):
            for each in range(count // 10):
                steps = [{"burst": 100}, *([{"hang": True}] if number % 2 else [])]
                client.ask(message(f"t{each}", steps, scope="temp"))
        crowd.listen(lambda: all(client.deltas == count * 10 for client in crowd.clients))


def test_temp_sessions_leave_nothing(ctx: Ctx) -> None:
    # abi.md 5.24
    sessions = ctx.state / "sessions"
    temporary(ctx, 100)
    at_rest(ctx)
    there, remembered, before = set(sessions.rglob("events.jsonl")), in_memory(ctx), rss_mib(ctx.pid)
    temporary(ctx, of(200, 1000))
    at_rest(ctx)
    until(lambda: in_memory(ctx), remembered.__eq__)
    assert set(sessions.rglob("events.jsonl")) == there
    assert not (sessions / "temp").exists()
    assert rss_mib(ctx.pid) < before + of(4, 16)


def kill_crowd(ctx: Ctx, count: int, scope: str) -> None:
    """Start clients, and kill them while all of them are being answered."""
    connections = sockets(ctx.pid)
    words = [
        sys.executable,
        "-m",
        "tests.mounted.crowd",
        str(socket_of(ctx)),
        str(count),
        scope,
        str(of(20, 100)),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=PROJECT) as child:
        assert child.stdout
        assert child.stdout.readline() == b"all are answered\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL
    at_rest(ctx)
    until(lambda: sockets(ctx.pid), connections.__eq__)


@pytest.mark.parametrize("scope", ["private", "temp"])
def test_clients_that_are_killed(ctx: Ctx, scope: str) -> None:
    # abi.md 5.24
    kill_crowd(ctx, of(50, 500), scope)
    files, before = len(os.listdir(f"/proc/{ctx.pid}/fd")), rss_mib(ctx.pid)
    kill_crowd(ctx, of(50, 500), scope)
    until(lambda: os.listdir(f"/proc/{ctx.pid}/fd"), lambda left: len(left) <= files)
    assert rss_mib(ctx.pid) < before + of(4, 24)
    assert in_memory(ctx) <= 64  # sessions that stay in memory for the next client


def test_cancelled_commands_fill_no_host(ctx: Ctx) -> None:
    # The children of a cancelled command are left to its host, whose limit of processes counts zombies.
    for _ in range(of(5, 100)):
        begun = [_command(ctx, "sleep 99 & sleep 98 & echo begun; wait") for _ in range(20)]
        for command in begun:
            assert command.stdout is not None
            while b"begun" not in command.stdout.readline():
                pass
            command.send_signal(signal.SIGINT)
        assert [command.wait(PATIENCE) for command in begun] == [130] * len(begun)
        for command in begun:
            command.communicate()
    until(lambda: _zombies(ctx.pid), lambda seen: seen == [])
    many = [_command(ctx, "read line; echo done | cat", stdin="go") for _ in range(60)]
    said = [command.communicate(timeout=PATIENCE) for command in many]
    assert [command.returncode for command in many] == [0] * len(many), said
    assert all(b"done" in out for out, _ in said)


def _command(ctx: Ctx, command: str, **more: str) -> subprocess.Popen[bytes]:
    words = [f"--{name}={value}" for name, value in more.items()]
    return subprocess.Popen(
        [ctx.tool("shell.exec"), "--cmd", command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ctx.environ,
        cwd=ctx.work,
    )


def _zombies(pid: int) -> list[int]:
    """Returns the zombies below a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z":
            found.append(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread may have ended meanwhile
                for child in (task / "children").read_text().split():
                    found += _zombies(int(child))
    return found
