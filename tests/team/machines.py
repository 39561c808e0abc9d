"""Machines of a team for tests: mounts with a state each on this one, and a server of NATS among them.

    with team(python, "laptop", "box") as machines: ...        box began the team, laptop joined it

Users of the machines are users of this one: `nobody` calls as uid 65534.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.mounted.ctx_mount import Ctx, mounted
from tests.places import PROJECT
from tests.waiting import until

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
        """Wait until it shows that object, and its machine is there."""
        path = self.ctx.root / f"{name}.d/status"
        until(lambda: path.read_text() if path.exists() else "", lambda seen: seen == "ready\n")

    def sees_no(self, name: str) -> None:
        until(lambda: (self.ctx.root / name).exists(), lambda seen: not seen)

    def sees_away(self, name: str) -> None:
        path = self.ctx.root / f"{name}.d/status"
        until(path.read_text, lambda seen: seen.startswith("broken: the machine "))

    def link(self) -> int:
        """The pid of its link."""
        return until(self._links)[0]

    def _links(self) -> list[int]:
        found = []
        for each in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                words = Path("/proc", each, "cmdline").read_bytes().split(b"\0") if each.isdigit() else []
                if b"cortexfs.team.link" in words and os.fsencode(self.ctx.state) in words:
                    found.append(int(each))
        return found


@contextlib.contextmanager
def machine(
    python: Path, name: str, enable: Sequence[str] = ("faulty",), config: str = ""
) -> Iterator[Machine]:
    with mounted(python, enable, config) as ctx:
        yield Machine(ctx, name)


@contextlib.contextmanager
def team(python: Path, *names: str) -> Iterator[dict[str, Machine]]:
    """The last of them began it."""
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


def need_server() -> None:
    """Fails where `make test-team` has not fetched the server."""
    assert SERVER.exists() or shutil.which("nats-server"), "make build/team fetches the server"
