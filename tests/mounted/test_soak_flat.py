"""One daemon in long use: afterwards it holds no more resources than before, and no event is lost.

abi.md 5.24, 5.25. Some rounds in `make test`, an hour of them with CTX_SOAK.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bench.measure import rss_mib
from tests.mounted.acting import ByModel, acting
from tests.mounted.crowd import Client, Crowd
from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.mounted.outside import KEY
from tests.shell.provider_server import SSE, Cut, Move, Request, chunks, said, status
from tests.waiting import PATIENCE, SOAK, until

SECONDS = 3600 if SOAK else 0
WARM, ROUNDS = 3, 3  # rounds in which its memory may grow, and the fewest in which it may not
GROWN_MIB = 6
AT_ONCE, EACH = 4, 20
CLIENTS, DELTAS = 40, 100
LARGE = "x" * (1 << 20)
ANSWERS: dict[str, Sequence[Move]] = {
    "gone": status(404, {"error": {"message": LARGE}}),
    "cut": [SSE, *chunks(said("a"), said("b")), Cut()],
}


class Held(NamedTuple):
    """The resources of a daemon, the number of processes below it, and of logs on its disk."""

    descriptors: int
    threads: int
    processes: int
    logs: int
    sessions: int  # in memory


class Forgetful(ByModel):
    async def moves(self, request: Request) -> Sequence[Move]:
        self.requests.clear()
        return await super().moves(request)


@pytest.fixture
def ctx(python: Path) -> Iterator[Ctx]:
    with acting(Forgetful(ANSWERS)) as provider, mounted(python) as mount:
        file, secret = mount.config / "providers" / "acted.toml", mount.state / "secrets" / "acted"
        file.parent.mkdir(exist_ok=True)
        rows = f'base_url = "{provider.base_url}"', 'format = "openai.chat"', 'models = ["gone", "cut"]'
        file.write_text("\n".join([*rows, "listed = false"]))
        secret.parent.mkdir(mode=0o700, exist_ok=True)
        secret.touch(0o600)
        secret.write_text(KEY)
        mount.umount()
        mount.mount()
        yield mount


def test_a_daemon_at_work_holds_what_it_held(ctx: Ctx) -> None:
    end, sizes = time.monotonic() + SECONDS, list[float]()
    first = held(ctx)
    while len(sizes) < WARM + ROUNDS or time.monotonic() < end:
        used(ctx)
        ctx.at_rest()
        sizes.append(rss_mib(ctx.pid))
        if len(sizes) == WARM:
            first = held(ctx)
    until(lambda: held(ctx), lambda now: all(a <= b for a, b in zip(now, first, strict=True)))
    assert sizes[-1] - max(sizes[:WARM]) < GROWN_MIB, [round(size, 1) for size in sizes]


def held(ctx: Ctx) -> Held:
    place, remembered = Path(f"/proc/{ctx.pid}"), int(ctx.status["sessions"].split()[0])
    logs = sum(1 for _ in (ctx.state / "sessions").rglob("events.jsonl"))
    return Held(
        len(os.listdir(place / "fd")), len(os.listdir(place / "task")), below(ctx.pid), logs, remembered
    )


def below(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return len(children) + sum(below(int(child)) for child in children)


def used(ctx: Ctx) -> None:
    """Use each service of the daemon once; some of the calls fail."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        calls = [pool.submit(call, ctx, n) for n in range(EACH) for call in (tools, models)]
        for done in calls:
            done.result()
    cancelled(ctx)
    clients(ctx)


def tools(ctx: Ctx, number: int) -> None:
    assert ctx.call("text.word_count", f"number {number}").output.startswith("2 ")
    assert ctx.call("fs.read", str(ctx.work / "missing")).code == "ENOENT"
    assert ctx.call("fs.read", "--strange").code == "EINVAL"


def models(ctx: Ctx, number: int) -> None:
    model = str(ctx.root / "model")
    echoed = Answer(ctx.run([f"{model}/debug/echo", f"number {number}"], text=False))
    assert (echoed.status, echoed.output) == (0, f"number {number}")
    name, code = (("gone", "ENOENT"), ("cut", "EREMOTEIO"))[number % 2]
    failed = Answer(ctx.run([f"{model}/acted/{name}", "-"], input=LARGE.encode(), text=False))
    assert failed.code == code


def cancelled(ctx: Ctx) -> None:
    words = [ctx.tool("shell.exec"), "--cmd", "echo begun; sleep 99"]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=ctx.environ
    ) as command:
        assert command.stdout
        while b"begun" not in command.stdout.readline():
            pass
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=PATIENCE)
        assert command.returncode == 130


def clients(ctx: Ctx) -> None:
    """Half of the clients leave during a run. The first client's session stays until a command removes it."""
    path = ctx.root / "model" / "debug" / "script.sock"
    crowd = Crowd(Client(path) for _ in range(CLIENTS))
    for number, client in enumerate(crowd.clients):
        steps = [{"burst": DELTAS}, *([{"hang": True}] if number % 2 else [])]
        scope = "temp" if number else "private"
        client.ask({"op": "send", "session": "kept", "scope": scope, "input": json.dumps(steps)})
    crowd.listen(lambda: all(client.deltas == DELTAS for client in crowd.clients))
    crowd.listen(lambda: crowd.clients[0].is_done)
    crowd.close()
    (log,) = (log for log in (ctx.state / "sessions").rglob("events.jsonl") if log.parent.name == "kept")
    assert log.read_bytes().count(b'{"type":"delta"') == DELTAS
    ctx.quickly("session", "rm", "model/debug/script", "kept", "--yes")
