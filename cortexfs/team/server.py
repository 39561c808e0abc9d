"""The server of a machine: NATS with JetStream, as a child of the link, with its configuration.

    found = program()                  the path of nats-server; EHOSTDOWN where it is missing or too old
    server = TeamServer(places, machine)
    server.apply(facts)                writes server/nats.conf, and has the server read it
    await server.run()                 starts it where it is one, and starts it again where it ends

Rules: the server ends with the link, and loses nothing by that: it syncs every message before it confirms it.
It speaks only TLS 1.3, and trusts only tokens that the team's key has signed. A team has one server, or three
as a cluster. Servers of a cluster know each other by the pins of their certificates' keys.
This file must never know the messages between machines.
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

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.linux.syscalls import PR_SET_PDEATHSIG, prctl
from cortexfs.state import whole_files
from cortexfs.team import keys, nats_wire
from cortexfs.team.places import TeamFacts, TeamPlaces, TeamSecrets, read, written

PROGRAM = "nats-server"
OLDEST = (2, 15)
RETRY_SECONDS = 1.0
STOP_SECONDS = 5.0
SERVERS = 3  # of a cluster: one of them may be away
ROUTES = 2000  # the distance from the port for clients to the port for servers
CLAIMS = 3  # JWTs that a server has to trust
VARIABLE = "CTX_NATS_SERVER"  # names another program to use
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")

_WORD = re.compile(r"[A-Za-z0-9._:\[\]-]+", re.ASCII)

log = logging.getLogger("cortexfs")


def program(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the path of a server that is new enough: that of this installation, or one on PATH."""
    beside = str(Path(sysconfig.get_path("scripts")) / PROGRAM)
    choice = environ.get(VARIABLE)
    candidates = [choice] if choice else [beside, shutil.which(PROGRAM, path=environ.get("PATH"))]
    old = ""
    for path in filter(None, candidates):
        try:
            output = subprocess.run(
                [path, "--version"], capture_output=True, timeout=10, check=True, text=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        found = _VERSION.search(output)
        if found and (int(found[1]), int(found[2])) >= OLDEST:
            return path
        old = old or f"{path} is {found[0] if found else 'of an unknown version'}"
    need = f"version {OLDEST[0]}.{OLDEST[1]} or later is needed; pip install 'cortexfs[team]' brings it"
    raise Fault("EHOSTDOWN", f"{old}, and {need}" if old else f"there is no {PROGRAM} here: {need}")


class NatsSettings(msgspec.Struct, frozen=True):
    """The lasting settings of this machine's server."""

    program: str
    listen: str  # HOST:PORT
    account: str  # public keys
    system: str
    claims: list[str]  # JWTs: of the operator, the account, and the system's account


def claims(secrets: TeamSecrets, removed: Mapping[str, int]) -> list[str]:
    """Returns the JWTs that a server has to trust. `removed` has the keys of removed machines."""
    operator, account, system = map(keys.Key.of_seed, (secrets.operator, secrets.account, secrets.system))
    claim_sets = [
        keys.operator_claims(operator, system.public),
        keys.account_claims(operator.public, account.public, "team", stores=True, removed=removed),
        keys.account_claims(operator.public, system.public, "system", stores=False),
    ]
    return [each.signed(operator) for each in claim_sets]


def route(address: str) -> str:
    """Returns the address for other servers of a server with this address for clients."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + ROUTES}"


def check_words(*words: str) -> None:
    """Raises EPROTO if input from another machine would be more than a word in the configuration."""
    for each in words:
        if not _WORD.fullmatch(each):
            raise Fault("EPROTO", f"the team has sent {each[:80]!r}, which is not valid for a server")


def _configuration(folder: Path, engine: NatsSettings, machine: str, facts: TeamFacts, room: int) -> bytes:
    files = [f'  cert_file: "{folder}/server.pem"', f'  key_file: "{folder}/server.key"']
    tls = [*files, '  min_version: "1.3"', "  timeout: 5"]
    lines = [
        f'server_name: "{machine}"',
        f'listen: "{engine.listen}"',
        f"max_payload: {nats_wire.MAX_PAYLOAD}",
        "max_connections: 4096",
        'write_deadline: "10s"',
        'ping_interval: "5s"',  # after three of these, a server that is cut off is known to be
        *("tls {", *tls, "  handshake_first: true", "}"),
        "jetstream {",
        f'  store_dir: "{folder}/{"cluster" if facts.is_cluster else "store"}"',
        "  sync_interval: always",
        # Else the server takes three quarters of what is free when it starts: nothing, on a full disk.
        f"  max_file_store: {room}",
        "}",
        f'operator: "{engine.claims[0]}"',
        f"system_account: {engine.system}",
        f'resolver: {{ type: full, dir: "{folder}/accounts", interval: "10s" }}',
        "resolver_preload: {",
        f'  {engine.account}: "{engine.claims[1]}"',
        f'  {engine.system}: "{engine.claims[2]}"',
        "}",
    ]
    if facts.is_cluster:
        routes = [f'"nats://{each.route}"' for each in facts.servers]
        pins = [f'"{each.pin}"' for each in facts.servers]
        lines += ["cluster {", '  name: "team"', f'  listen: "{route(engine.listen)}"']
        lines += [f"  routes: [{', '.join(routes)}]", "  tls {", *tls, f'  ca_file: "{folder}/authority.pem"']
        lines += ["  verify: true", f"  pinned_certs: [{', '.join(pins)}]", "  }", "}"]
    return "\n".join(lines).encode() + b"\n"


def keep(places: TeamPlaces, engine: NatsSettings, key: bytes, certificate: bytes, authority: str) -> None:
    """Write the files of a server, without its configuration, which depends on the other servers."""
    for folder in (places.folder, places.server):
        folder.mkdir(mode=0o700, exist_ok=True)
    whole_files.replace(places.server / "server.pem", [certificate], 0o600)
    whole_files.replace(places.server / "server.key", [key], 0o600)
    whole_files.replace(places.server / "authority.pem", [authority.encode()], 0o600)
    written(places.engine, engine)


def _started(folder: Path, tools: str) -> subprocess.Popen[bytes]:
    """Start a server that ends with the link, however that ends, as its port must be free for the next. Call
    it in the main thread, as the server ends with that thread."""
    with open(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        words = [tools, "-c", str(folder / "nats.conf")]
        ends = partial(_end_with, os.getpid())
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=ends
        )


def _end_with(parent: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


class TeamServer:
    """The server's process, from the link's side."""

    def __init__(self, places: TeamPlaces, machine: str) -> None:
        self._folder = places.server
        self._machine = machine
        self._is_first = places.secrets.exists()
        self._engine = read(places.engine, NatsSettings, "the file of a team's server")
        if self._engine is not None:
            disk = os.statvfs(self._folder)
            # Asked once: a size that varies, as that of some file systems, would start the server anew.
            self._room = disk.f_blocks * disk.f_frsize * 3 // 4
        self._need = trio.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def apply(self, facts: TeamFacts) -> None:
        """Make the server what the team needs: none, the only server, or one of a cluster."""
        if self._engine is None:
            return
        is_named = self._machine in [each.machine for each in facts.servers]
        is_wanted = is_named if facts.is_cluster else self._is_first
        if not is_wanted:
            if self._need.is_set():  # otherwise a task waits for this event
                self._need = trio.Event()
            self._end()
            return
        path = self._folder / "nats.conf"
        now = _configuration(self._folder, self._engine, self._machine, facts, self._room)
        try:
            if not path.exists() or path.read_bytes() != now:
                whole_files.replace(path, [now], 0o600)
                self._end()
        except OSError as problem:
            log.error("the new configuration of the team's server cannot be written: %s", problem)
        self._need.set()

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()

    async def run(self) -> None:
        """Keep the server running, for ever."""
        while self._engine is not None:
            await self._need.wait()
            try:
                await self._once(self._engine.program)
            except OSError as problem:
                log.error("the server of the team does not start: %s", problem)
            await trio.sleep(RETRY_SECONDS)

    async def _once(self, tools: str) -> None:
        process = self._process = _started(self._folder, tools)
        pidfd = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
            status = process.wait()
            level = logging.ERROR if status not in (0, 1) else logging.INFO  # 1: it was asked to end
            log.log(level, "the server of the team has ended with status %d", status)
        finally:
            if process.poll() is None:
                process.terminate()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_SECONDS):
                    await trio.lowlevel.wait_readable(pidfd)
                process.kill()
                process.wait()
            os.close(pidfd)
