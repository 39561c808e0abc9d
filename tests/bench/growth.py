"""The cost of a team as it grows, and the time to go on after the loss of a machine.

        growth(python)       of a server: a connection, a session with a message
        lasting(python)      of three servers: an append, and taking over from a killed machine

Rules: the stored sessions are not the machine's own, so that its link passes over them.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import trio

from cortexfs.team import keys, subjects
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.places import TeamPlaces
from tests.bench import measure
from tests.mounted.ctx_mount import wait_gone
from tests.team import machines
from tests.team.machines import Machine
from tests.team.sessions import MAP, same, send, take
from tests.waiting import until

CONNECTIONS = 100
SESSIONS = 100_000  # with a message each
APPENDS = 300
WRITERS = 64
SIZE = 500  # bytes of a message
PATH = "model/debug/echo.sock"


class Growth(NamedTuple):
    connection: float  # KiB of the server's memory
    session: float  # bytes of the server's memory
    disk: float  # bytes of disk for a message, without the message itself


class Lasting(NamedTuple):
    append: float  # ms
    takeover: float  # s, where the lost machine runs no server
    takeover_of_server: float  # s, where it runs one


def growth(python: Path) -> Growth:
    with machines.team(python, "laptop", "box") as found:
        return trio.run(_grown, found["box"])


def lasting(python: Path) -> Lasting:
    with machines.cluster(python, "box", "desk", "shelf") as three, _fourth(python, three["shelf"]) as laptop:
        found = {**three, "laptop": laptop}
        for each in found.values():
            (each.ctx.config / "team.map").write_text(MAP)
        append = trio.run(_appended, three["box"])
        return Lasting(append, _taken(found, "laptop"), _taken(found, "desk"))


@contextmanager
def _fourth(python: Path, first: Machine) -> Iterator[Machine]:
    with machines.machine(python, "laptop") as laptop:
        laptop.team("join", first.team("init").stdout.strip(), "--name", "laptop")
        yield laptop


def _subject(machine: Machine, session: int) -> str:
    return f"ctx.log.{machine.name}.nobody.model.bench.s{session}"


async def _grown(box: Machine) -> Growth:
    before = measure.rss_mib(box.server())
    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            await _connected(box, nursery)
        connection = (measure.rss_mib(box.server()) - before) / CONNECTIONS * 1024
        nursery.cancel_scope.cancel()
    memory, disk = _rested(box), _size(box.folder / "server")
    async with trio.open_nursery() as nursery:
        client = await _connected(box, nursery)
        async with trio.open_nursery() as writers:
            for at in range(WRITERS):
                writers.start_soon(_write, client, box, range(at, SESSIONS, WRITERS))
        nursery.cancel_scope.cancel()
    session = (_rested(box) - memory) * (1 << 20) / SESSIONS
    return Growth(connection, session, (_size(box.folder / "server") - disk) / SESSIONS - SIZE)


async def _connected(machine: Machine, nursery: trio.Nursery) -> Client:
    member = TeamPlaces(machine.ctx.state, machine.ctx.config).read_member()
    account = Account(keys.Key.of_seed(member.seed), member.token, member.authority)
    client = Client(member.machine, member.servers, account, subjects.inbox(member.machine))
    nursery.start_soon(client.run)
    await client.connected.wait()
    return client


def _rested(box: Machine) -> float:
    """Returns the memory of the server after a restart: all that it must keep, and none that it has freed."""
    lost = box.server()
    os.kill(lost, signal.SIGKILL)
    assert wait_gone(lost)
    box.works()
    until(lambda: box.status["problem"], lambda seen: not seen)
    return measure.rss_mib(box.server())


async def _write(client: Client, box: Machine, sessions: range) -> None:
    for session in sessions:
        await client.stored(_subject(box, session), secrets.token_bytes(SIZE))


async def _appended(box: Machine) -> float:
    took: list[float] = []
    async with trio.open_nursery() as nursery:
        client = await _connected(box, nursery)
        for _ in range(APPENDS):
            began = time.perf_counter()
            await client.stored(_subject(box, 0), secrets.token_bytes(SIZE))
            took.append((time.perf_counter() - began) * 1e3)
        nursery.cancel_scope.cancel()
    return median(took)


def _taken(found: dict[str, Machine], lost: str) -> float:
    """Seconds from kill -9 of a machine's daemon, link and server until another machine has the session."""
    box, session = found["box"], f"plan+{lost}"
    send(found[lost], session, "hello")
    same(session, found[lost], box)
    link, pid, began = found[lost].link(), found[lost].ctx.pid, time.monotonic()
    for each in (link, pid):  # the link first, as it would announce the end of the daemon
        os.kill(each, signal.SIGKILL)
    until(lambda: take(box, session, check=False), lambda seen: "this machine has" in seen)
    took = time.monotonic() - began
    assert wait_gone(pid)
    found[lost].ctx.ctx("umount", str(found[lost].ctx.root), check=False)
    found[lost].ctx.mount()
    return took


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
