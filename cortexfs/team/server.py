"""The server of a machine: NATS with JetStream, as a child of the link, with the configuration that it needs.

    found = program()                  the path of nats-server; EHOSTDOWN where it is missing or too old
    configure(places, ...)             writes server/nats.conf
    await TeamServer(places).run()         starts it, and starts it again where it ends

Rules: the server ends with the link, and loses nothing by that: it syncs every message before it says so. It
speaks TLS 1.3 alone, and believes nobody but by a token that the team's key has signed.
This file must never know what machines say to each other.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import trio

from cortexfs.core.errors import Fault
from cortexfs.linux.syscalls import PR_SET_PDEATHSIG, prctl
from cortexfs.team import keys, nats_wire
from cortexfs.team.places import TeamPlaces, TeamSecrets

PROGRAM = "nats-server"
OLDEST = (2, 15)
RETRY_SECONDS = 1.0
STOP_SECONDS = 5.0
VARIABLE = "CTX_NATS_SERVER"  # another program than the first that is found
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")

log = logging.getLogger("cortexfs")


def program(environ: Mapping[str, str] = os.environ) -> str:
    """The path of a server that is new enough: that of this installation, or one on PATH."""
    beside = str(Path(sysconfig.get_path("scripts")) / PROGRAM)
    named = environ.get(VARIABLE)
    candidates = [named] if named else [beside, shutil.which(PROGRAM, path=environ.get("PATH"))]
    old = ""
    for path in filter(None, candidates):
        try:
            said = subprocess.run(
                [path, "--version"], capture_output=True, timeout=10, check=True, text=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        found = _VERSION.search(said)
        if found and (int(found[1]), int(found[2])) >= OLDEST:
            return path
        old = old or f"{path} is {found[0] if found else 'of no version that is known'}"
    wanted = f"version {OLDEST[0]}.{OLDEST[1]} or later is needed; pip install 'cortexfs[team]' brings it"
    raise Fault("EHOSTDOWN", f"{old}, and {wanted}" if old else f"there is no {PROGRAM} here: {wanted}")


def configure(
    places: TeamPlaces, team: str, machine: str, listen: str, secrets: TeamSecrets, tools: str
) -> None:
    """Write the configuration of this machine's server. `tools` is the path of its program."""
    account, system = keys.Key.of_seed(secrets.account), keys.Key.of_seed(secrets.system)
    operator = keys.Key.of_seed(secrets.operator)
    claims = [
        keys.operator_claims(operator, system.public),
        keys.account_claims(operator.public, account.public, team, stores=True, removed=places.removed()),
        keys.account_claims(operator.public, system.public, "system", stores=False),
    ]
    texts = [each.signed(operator) for each in claims]
    folder = places.server
    lines = [
        f'server_name: "{machine}"',
        f'listen: "{listen}"',
        f"max_payload: {nats_wire.MAX_PAYLOAD}",
        "max_connections: 4096",
        'write_deadline: "10s"',
        'ping_interval: "20s"',
        "tls {",
        f'  cert_file: "{folder}/server.pem"',
        f'  key_file: "{folder}/server.key"',
        "  handshake_first: true",
        '  min_version: "1.3"',
        "  timeout: 5",
        "}",
        "jetstream {",
        f'  store_dir: "{folder}/store"',
        "  sync_interval: always",
        "}",
        f'operator: "{texts[0]}"',
        f"system_account: {system.public}",
        "resolver: MEMORY",
        "resolver_preload: {",
        f'  {account.public}: "{texts[1]}"',
        f'  {system.public}: "{texts[2]}"',
        "}",
    ]
    write(folder / "nats.conf", "\n".join(lines).encode() + b"\n")
    write(folder / "program", tools.encode())


def listening(places: TeamPlaces) -> str:
    """HOST:PORT, as the server's configuration has it."""
    found = re.search('^listen: "(.*)"$', (places.server / "nats.conf").read_text(), re.MULTILINE)
    if found is None:
        raise Fault("EINVAL", f"{places.server}/nats.conf is damaged: it does not say where to listen")
    return found[1]


def write(path: Path, data: bytes) -> None:
    """A file for its owner alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)


def _started(folder: Path) -> subprocess.Popen[bytes]:
    """It ends when the link does, however that ends, or the next one would find its port taken. Call it in
    the main thread, whose end it is that counts."""
    program_ = (folder / "program").read_text()
    with open(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as said:
        words = [program_, "-c", str(folder / "nats.conf")]
        ends = partial(_end_with, os.getpid())
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=ends)


def _end_with(parent: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


class TeamServer:
    """The server's process, from the side of the link."""

    def __init__(self, places: TeamPlaces) -> None:
        self._places = places
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None

    def restart(self) -> None:
        """Have it read its configuration again."""
        if self._process is not None:
            self._process.terminate()

    async def run(self) -> None:
        """Have it run, for ever."""
        while True:
            try:
                await self._once()
            except OSError as problem:
                log.error("the server of the team does not start: %s", problem)
            await trio.sleep(RETRY_SECONDS)

    async def _once(self) -> None:
        folder = self._places.server
        process = self._process = _started(folder)
        self.pid = process.pid
        pidfd = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
            status = process.wait()
            level = logging.ERROR if status not in (0, 1) else logging.INFO  # 1: it was asked to
            log.log(level, "the server of the team has ended with status %d; it is started again", status)
        finally:
            self.pid = 0
            if process.poll() is None:
                process.terminate()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_SECONDS):
                    await trio.lowlevel.wait_readable(pidfd)
                process.kill()
                process.wait()
            os.close(pidfd)
