"""Real callers and real hosts for the tests of identity: processes that connect, and a fork server. Its hosts
execute the source that a test sends. Nothing of either is left afterwards."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec

import cortexfs
from cortexfs.core import hostcalls
from cortexfs.host import starter
from cortexfs.host.vouching import following
from cortexfs.peers.caller import Caller, caller_of
from tests.waiting import PATIENCE

NOBODY = 65534

AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={NOBODY},1")
PLUGIN = hostcalls.Plugin("p", "1", "python", "m:a")
LIMITS = hostcalls.HostLimits(memory_bytes=1 << 30, processes=32, open_files=256)

CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
exec(sys.argv[2])
print("connected", flush=True)
sys.stdin.read()
"""

# A host that executes the source it receives, and answers with the JSON of `answer`.
FAKE = """
import json, os, sys
def serve(control, plugin):
    while source := control.recv(65536):
        space = {"os": os, "control": control, "plugin": plugin, "answer": None}
        try:
            exec(source, space)
        except BaseException as error:
            space["answer"] = "raised " + type(error).__name__
            if isinstance(error, AssertionError):
                space["answer"] += f": {error}"
        control.send(json.dumps(space["answer"]).encode())
    os._exit(0)
"""

_replies: msgspec.msgpack.Decoder[hostcalls.FromForkServer] = msgspec.msgpack.Decoder(
    hostcalls.FromForkServer
)


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that everybody can enter; the temporary directories of pytest are private."""
    path = Path(tempfile.mkdtemp(prefix="cortexfs-test-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def ended(pidfd: int) -> bool:
    """Wait for a process to end. Returns True if it did in time."""
    return bool(select.select([pidfd], [], [], PATIENCE)[0])


@contextmanager
def connected(*prefix: str, after: str = "", command: Sequence[str] = ()) -> Iterator[socket.socket]:
    """Yields the daemon's end of a connection from a process that `prefix` starts. The process is no
    descendant of ours. It executes `after` once it is connected."""
    with ExitStack() as stack:
        address = str(stack.enter_context(public_directory()) / "socket")
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        os.chmod(address, 0o777)
        listener.listen()
        listener.settimeout(PATIENCE)
        client = [*prefix, *(command or (sys.executable, "-I", "-c", CLIENT, address, after))]
        process = stack.enter_context(
            subprocess.Popen(["setsid", "-f", *client], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert process.stdin is not None
        assert process.stdout is not None
        sock, _ = listener.accept()
        stack.enter_context(sock)
        pidfd = sock.getsockopt(socket.SOL_SOCKET, 77)
        try:
            assert process.stdout.readline() == b"connected\n"
            yield sock
        finally:
            process.stdin.close()
            try:
                assert ended(pidfd)
            finally:
                os.close(pidfd)


@contextmanager
def connection_of(identity: hostcalls.Identity) -> Iterator[socket.socket]:
    """Yields the daemon's end of a connection of this user, whose process has ended by then. For an identity
    with powers of root, this process connects."""
    with public_directory() as path, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "socket"))
        os.chmod(path / "socket", 0o777)
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            if identity.capabilities:
                client.connect(listener.getsockname())
            elif pid := os.fork():
                os.waitpid(pid, 0)
            else:
                _connect_as(identity, client, listener.getsockname())
            sock, _ = listener.accept()
            with sock:
                yield sock


def _connect_as(identity: hostcalls.Identity, client: socket.socket, address: str) -> NoReturn:
    try:
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        client.connect(address)
    finally:
        os._exit(0)


@contextmanager
def followed(sock: socket.socket, caller: Caller) -> Iterator[list[int]]:
    """Yields the descriptors that a host follows: the caller's pidfd and, if different, its root
    directory."""
    rights = following(sock, caller.pid, caller.identity)
    try:
        yield rights
    finally:
        for fd in rights:
            os.close(fd)


class Connected:
    """A caller, and the daemon's end of its connection."""

    def __init__(self, caller: Caller, connection: socket.socket) -> None:
        self.pid, self.identity, self.cwd = caller
        self.connection = connection


class Host:
    def __init__(self, number: int, control: socket.socket, identity: hostcalls.Identity) -> None:
        self.number = number
        self.control = control
        self.identity = identity
        self.plugin = PLUGIN
        self.pid = 0
        self.pidfd = -1

    def ask(self, source: str) -> Any:
        """Execute `source` in the host, and return the value it leaves in `answer`."""
        self.control.send(source.encode())
        return json.loads(self.control.recv(1 << 20))


class Forks:
    """A fork server, from the daemon's side."""

    def __init__(
        self, *prefix: str, sealed: bool = True, state: Path | None = None, daemon: int | None = None
    ) -> None:
        self.device = 0
        self.plugin = PLUGIN
        self._is_roots = prefix[: len(AS_NOBODY)] != AS_NOBODY and os.geteuid() == 0
        self._stack = ExitStack()
        home = self._stack.enter_context(public_directory())
        (home / "fake.py").write_text(FAKE)
        self.errors = self._stack.enter_context((home / "errors").open("w+b"))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        root = Path(cortexfs.__file__).parents[1]
        server = [str(Path(__file__).with_name("sealed_forks.py"))] if sealed else ["-m", starter.FORK_SERVER]
        command = [*prefix, sys.executable, *server]
        options = ["--state", str(state)] if state else []
        options += ["--daemon", str(daemon)] if daemon else []
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), "--serve", "fake:serve", "--preload", "json", *options],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=self.errors,
                env={"PYTHONPATH": f"{root}:{home}", "PATH": os.environ["PATH"]},
            )
        self._hosts: dict[int, Host] = {}
        self._number = 0

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        self.process.wait(PATIENCE)
        for host in self._hosts.values():
            host.control.close()
            if host.pidfd >= 0:
                os.close(host.pidfd)
        self._stack.close()

    @property
    def by_pid(self) -> dict[int, Host]:
        return {host.pid: host for host in self._hosts.values()}

    def send(
        self,
        identity: hostcalls.Identity,
        connection: socket.socket | None = None,
        limits: hostcalls.HostLimits = LIMITS,
        met: int = 0,
    ) -> Host:
        self._number += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(PATIENCE)
        host = self._hosts[self._number] = Host(self._number, ours, identity)
        spawn = hostcalls.Spawn(self._number, self.plugin, identity, limits, self.device, met)
        with theirs:
            self.say(spawn, theirs, self.errors, *([connection] if connection else []))
        return host

    def say(self, message: hostcalls.ToForkServer, *rights: socket.socket | BinaryIO) -> None:
        socket.send_fds(self.control, [msgspec.msgpack.encode(message)], [each.fileno() for each in rights])

    def hear(self) -> hostcalls.FromForkServer:
        message = _replies.decode(self.control.recv(1 << 16))
        if isinstance(message, hostcalls.HostStart) and message.pid:
            self._hosts[message.host].pidfd = os.pidfd_open(message.pid)
        return message

    def spawn(
        self,
        identity: hostcalls.Identity,
        connection: socket.socket | None = None,
        limits: hostcalls.HostLimits = LIMITS,
    ) -> Host:
        """Start a host. Without `connection`, a new connection of that user vouches for the host."""
        with ExitStack() as stack:
            if connection is None and self._is_roots and identity != hostcalls.DESCRIBING:
                connection = stack.enter_context(connection_of(identity))
            host = self.send(identity, connection, limits)
            said = self.hear()
        assert isinstance(said, hostcalls.HostStart)
        assert (said.host, said.fault) == (host.number, None), said.fault
        host.pid = said.pid
        return host

    def refused(
        self, identity: hostcalls.Identity, connection: socket.socket | None = None, met: int = 0
    ) -> tuple[str, str]:
        """Ask for a host that must not start, and return the fault."""
        host = self.send(identity, connection, met=met)
        said = self.hear()
        assert isinstance(said, hostcalls.HostStart)
        assert said.fault is not None
        assert said.pid == 0
        assert host.pidfd == -1
        assert host.control.recv(1) == b""  # nothing serves on it
        return said.fault

    def exit_of(self, host: Host) -> int:
        """Wait until `host` has ended, and return its status."""
        said = self.hear()
        assert isinstance(said, hostcalls.HostExit)
        assert said.host == host.number
        return said.status

    def kill(self, host: Host) -> None:
        signal.pidfd_send_signal(host.pidfd, signal.SIGKILL)

    @contextmanager
    def caller(self, *prefix: str, after: str = "") -> Iterator[Connected]:
        with connected(*prefix, after=after) as sock, caller_of(sock, self.by_pid) as caller:
            yield Connected(caller, sock)

    @contextmanager
    def host(self, *prefix: str, after: str = "") -> Iterator[Host]:
        """Yields a host for a caller that `prefix` starts."""
        with self.caller(*prefix, after=after) as caller:
            yield self.spawn(caller.identity, caller.connection)
