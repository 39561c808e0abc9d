"""Machines of a team for tests: mounts on this machine, each with a state of its own, and a server of NATS.

    with team(python, "laptop", "box") as machines: ...        box began the team, laptop joined it

Users of these machines are users of the real one: `nobody` calls as uid 65534.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from cortexfs.team import keys
from cortexfs.team.places import Member, TeamPlaces
from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.places import PROJECT
from tests.team.networks import Place
from tests.waiting import until

COUNT = "text.word_count"
ROUTES = 2000  # the difference from a server's port for clients to its port for servers
SERVER = PROJECT / "build/team/bin/nats-server"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Machine:
    """A mount that may be in a team."""

    def __init__(self, ctx: Ctx, name: str) -> None:
        self.ctx = ctx
        self.name = name
        ctx.environ["CTX_NATS_SERVER"] = str(SERVER)

    def team(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.ctx.ctx("team", *words, check=check)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.team("status", "--json").stdout)
        return found

    @property
    def folder(self) -> Path:
        return self.ctx.state / "team"

    def sees(self, name: str) -> None:
        """Wait until this machine shows the object as ready."""
        path = self.ctx.root / f"{name}.d/status"
        until(lambda: path.read_text() if path.exists() else "", lambda seen: seen == "ready\n")

    def is_in_cluster(self) -> bool:
        """Returns True if its server has the streams of three servers; only then may a server be lost."""
        return any("SESSIONS" in names for _, names, _ in os.walk(self.folder / "server/cluster"))

    def shows(self, name: str, say: Callable[[], None]) -> None:
        """Have a task say it until this machine shows the object, which a link of another may withdraw."""

        def look() -> bool:
            trio.from_thread.run_sync(say)
            return (self.ctx.root / name).exists()

        until(look)

    def sees_no(self, name: str) -> None:
        until(lambda: (self.ctx.root / name).exists(), lambda seen: not seen)

    def sees_away(self, name: str) -> None:
        path = self.ctx.root / f"{name}.d/status"
        until(path.read_text, lambda seen: seen.startswith("broken: the machine "))

    def link(self) -> int:
        """Returns the pid of its link."""
        return until(self._links)[0]

    def works(self, *names: str) -> None:
        """Wait until those machines answer calls."""
        for name in names:
            self.sees(f"tool/{COUNT}+{name}")
            until(partial(self.count, name), lambda answer: answer.status == 0)

    def count(self, name: str) -> Answer:
        return self.ctx.call(f"{COUNT}+{name}", '{"text":"a b"}')

    def server(self) -> int:
        """Returns the pid of its NATS server."""
        return until(lambda: self._processes(os.fsencode(self.folder / "server/nats.conf")))[0]

    def _links(self) -> list[int]:
        return self._processes(b"cortexfs.team.link", os.fsencode(self.ctx.state))

    def _processes(self, *wanted: bytes) -> list[int]:
        """Returns the pids of the processes whose command has all these words."""
        found = []
        for each in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                words = Path("/proc", each, "cmdline").read_bytes().split(b"\0") if each.isdigit() else []
                if {*wanted} <= {*words}:
                    found.append(int(each))
        return found


def member_of(machine: Machine) -> Member:
    return TeamPlaces(machine.ctx.state, machine.ctx.config).read_member()


def prover(laptop: Machine, box: Machine) -> Callable[..., bytes]:
    """Returns `keys.prove` with the keys by which the laptop proves its calls to the box."""
    key, public = (keys.Key.of_seed(member_of(each).seed) for each in (laptop, box))
    return partial(keys.prove, key, public.public_raw)


@contextlib.contextmanager
def machine(
    python: Path, name: str, enable: Sequence[str] = ("faulty",), config: str = "", place: Place | None = None
) -> Iterator[Machine]:
    """Mounts a machine. With a place, its daemon and all its calls run in the network of that place."""
    with mounted(python, enable, config, owner=None if place is None else 0, space=place) as ctx:
        yield Machine(ctx, name)


@contextlib.contextmanager
def team(python: Path, *names: str) -> Iterator[dict[str, Machine]]:
    """Yields the machines of a team that the last of them began."""
    with contextlib.ExitStack() as stack:
        machines = {name: stack.enter_context(machine(python, name)) for name in names}
        first, *others = reversed(machines.values())
        port = free_port()
        begun = first.team(
            "init", "--name", first.name, "--listen", f"127.0.0.1:{port}", "--address", "127.0.0.1"
        )
        token = begun.stdout.strip()
        for each in others:
            each.team("join", token, "--name", each.name)
            token = first.team("init").stdout.strip()
        yield machines


@contextlib.contextmanager
def cluster(
    python: Path, *names: str, places: Mapping[str, Place] | None = None
) -> Iterator[dict[str, Machine]]:
    """Yields three machines of a team that the last of them began. Each is a server, and exports COUNT to
    root of the others."""

    def where(name: str) -> list[str]:
        at = places[name].address if places else "127.0.0.1"
        return ["--name", name, "--listen", f"{at}:{free_ports()}", "--address", at]

    with contextlib.ExitStack() as stack:
        own = places or {}
        machines = {name: stack.enter_context(machine(python, name, place=own.get(name))) for name in names}
        first, *others = reversed(machines.values())
        first.team("init", *where(first.name))
        for each in others:
            token = first.team("init", "--server").stdout.strip()
            each.team("join", "--server", *where(each.name), token)
        for each in machines.values():
            until(each.is_in_cluster)
        for each in machines.values():
            to = [word for name in names if name != each.name for word in ("--to", f"root@{name}")]
            each.team("export", f"tool/{COUNT}", *to, "--as", "daemon")
        for each in machines.values():
            for name in names:
                if name != each.name:
                    each.sees(f"tool/{COUNT}+{name}")
        yield machines


def free_ports() -> int:
    """Returns a free port whose port for servers, ROUTES above it, is free as well."""
    while True:
        port = free_port()
        with socket.socket() as sock, contextlib.suppress(OSError, OverflowError):
            sock.bind(("127.0.0.1", port + ROUTES))
            return port


def need_server() -> None:
    """Fails unless `make test-team` has fetched the server or one is installed."""
    assert SERVER.exists() or shutil.which("nats-server"), "make build/team fetches the server"
