"""Calls to another machine of a team, with both machines and the server on this one."""

from __future__ import annotations

import functools
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench import measure
from tests.team import machines
from tests.team.machines import Machine
from tests.waiting import until

PAIRS = 200
CALLERS, CALLS = 16, 1000
BYTES = 100_000_000
TOOL = "fs.read"


class TeamFigures(NamedTuple):
    over: float  # ms that a remote call takes longer than the same call here
    took: float  # ms of a remote call
    over_ssh: float  # a remote call, over `ssh host tool` with a connection that is kept
    joined: float  # a local call with a team joined, over a local call without
    rate: float  # calls a second
    stream: float  # MB a second


@contextmanager
def _two(python: Path) -> Iterator[tuple[Machine, Machine]]:
    with machines.team(python, "laptop", "box") as found:
        laptop, box = found["laptop"], found["box"]
        box.team("export", f"tool/{TOOL}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{TOOL}+box")
        yield laptop, box


@contextmanager
def _ssh() -> Iterator[list[str]]:
    """Yields the first words of a command that runs here by OpenSSH, over a connection that is kept open."""
    folder, port = Path(tempfile.mkdtemp(prefix="ctx-ssh-")), str(machines.free_port())
    Path("/run/sshd").mkdir(exist_ok=True)
    try:
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        rows = {
            "Port": port,
            "ListenAddress": "127.0.0.1",
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "PermitRootLogin": "yes",
            "StrictModes": "no",
            "PidFile": "none",
            "SetEnv": "SHLVL=2",  # else bash reads the user's .bashrc first
        }
        (folder / "config").write_text("".join(f"{key} {value}\n" for key, value in rows.items()))
        known = {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
        kept = {"ControlMaster": "auto", "ControlPersist": "yes", "ControlPath": str(folder / "kept")}
        options = [word for row in (known | kept).items() for word in ("-o", "=".join(row))]
        words = ["/usr/bin/ssh", "-F", "none", "-i", str(folder / "user"), "-p", port, *options, "127.0.0.1"]
        server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", folder / "config"])
        try:
            until(lambda: subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode == 0)
            yield words
            subprocess.run([*words, "-O", "exit"], check=True, stderr=subprocess.DEVNULL)
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder)


def figures(python: Path) -> TeamFigures:
    with machines.machine(python, "alone") as alone, _two(python) as (laptop, box):
        small = box.ctx.work / "small"
        small.write_text("x" * 1023 + "\n")
        small.chmod(0o644)

        def call(machine: Machine, name: str, path: Path = small) -> float:
            return measure.spawn([machine.ctx.tool(name), str(path)], machine.ctx.environ)

        here = functools.partial(call, laptop, TOOL)
        there = functools.partial(call, laptop, f"{TOOL}+box")
        took, local, _ = measure.paired(there, here, PAIRS)
        with _ssh() as ssh:
            by_ssh = functools.partial(
                measure.spawn, [*ssh, str(box.ctx.tool(TOOL)), str(small)], laptop.ctx.environ
            )
            _, _, over_ssh = measure.paired(there, by_ssh, PAIRS // 4)
        _, _, joined = measure.paired(here, functools.partial(call, alone, TOOL), PAIRS)
        rate, _ = measure.parallel(there, CALLERS, CALLS)
        large = box.ctx.work / "large"
        line = "the quick brown fox jumps over the lazy dog, again and again\n"
        large.write_text(line * (BYTES // len(line)))
        whole = statistics.median(call(laptop, f"{TOOL}+box", large) for _ in range(3))
        return TeamFigures(took - local, took, over_ssh, joined, rate, large.stat().st_size / 1e3 / whole)
