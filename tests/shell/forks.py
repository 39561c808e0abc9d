"""Real callers and real hosts for the tests of identity: processes that connect, a fork server whose
hosts execute what a test sends them, and nothing left of either afterwards."""

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
from typing import Any

import msgspec

import cortexfs
from cortexfs.caller import Caller, caller_of
from cortexfs.core import calls
from tests.waiting import PATIENCE

NOBODY = 65534

AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={NOBODY},1")
PLUGIN = calls.Plugin("p", "1", "python", "m:a")
LIMITS = calls.Limits(memory_bytes=1 << 30, processes=32, open_files=256)

CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
exec(sys.argv[2])
print("connected", flush=True)
sys.stdin.read()
"""

# A host that executes what it is sent and answers with the JSON of `answer`.
FAKE = """
import json, os, sys
def serve(control, plugin):
    while source := control.recv(65536):
        space = {"os": os, "control": control, "plugin": plugin, "answer": None}
        try:
            exec(source, space)
        except BaseException as error:
            space["answer"] = "raised " + type(error).__name__
        control.send(json.dumps(space["answer"]).encode())
    os._exit(0)
"""

_replies: msgspec.msgpack.Decoder[calls.FromForkServer] = msgspec.msgpack.Decoder(calls.FromForkServer)


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that everybody can enter, as pytest's own are private."""
    path = Path(tempfile.mkdtemp(prefix="cortexfs-test-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def ended(pidfd: int) -> bool:
    """Wait for a process to end."""
    return bool(select.select([pidfd], [], [], PATIENCE)[0])


@contextmanager
def connected(*prefix: str, after: str = "", command: Sequence[str] = ()) -> Iterator[socket.socket]:
    """The daemon's end of a connection from a process that `prefix` starts and that is no descendant
    of ours. It executes `after` once it is connected."""
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


class Host:
    def __init__(self, number: int, control: socket.socket, identity: calls.Identity) -> None:
        self.number = number
        self.control = control
        self.identity = identity
        self.plugin = PLUGIN
        self.pid = 0
        self.pidfd = -1

    def ask(self, source: str) -> Any:
        """Execute `source` in the host; what it leaves in `answer`."""
        self.control.send(source.encode())
        return json.loads(self.control.recv(1 << 20))


class Forks:
    """A fork server, from the daemon's side."""

    def __init__(self, *prefix: str, sealed: bool = True, state: Path | None = None) -> None:
        self.device = 0
        self.plugin = PLUGIN
        self._stack = ExitStack()
        home = self._stack.enter_context(public_directory())
        (home / "fake.py").write_text(FAKE)
        self.errors = self._stack.enter_context((home / "errors").open("w+b"))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE)
        root = Path(cortexfs.__file__).parents[1]
        command = [*prefix, sys.executable, "-m", f"cortexfs.host.{'sealing' if sealed else 'forkserver'}"]
        options = ["--state", str(state)] if state else []
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
        self, identity: calls.Identity, rights: Sequence[int] = (), limits: calls.Limits = LIMITS
    ) -> Host:
        self._number += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(PATIENCE)
        host = self._hosts[self._number] = Host(self._number, ours, identity)
        spawn = calls.Spawn(self._number, self.plugin, identity, limits, self.device)
        with theirs:
            socket.send_fds(self.control, [msgspec.msgpack.encode(spawn)], [theirs.fileno(), *rights])
        return host

    def hear(self) -> calls.FromForkServer:
        data, rights, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
        message = _replies.decode(data)
        if rights:
            self._hosts[message.host].pidfd = rights[0]
        return message

    def spawn(
        self, identity: calls.Identity, rights: Sequence[int] = (), limits: calls.Limits = LIMITS
    ) -> Host:
        host = self.send(identity, rights, limits)
        said = self.hear()
        assert isinstance(said, calls.Spawned)
        assert (said.host, said.fault) == (host.number, None), said.fault
        host.pid = said.pid
        return host

    def refused(self, identity: calls.Identity, rights: Sequence[int] = ()) -> tuple[str, str]:
        """The fault of a host that must not start."""
        host = self.send(identity, rights)
        said = self.hear()
        assert isinstance(said, calls.Spawned)
        assert said.fault is not None
        assert said.pid == 0
        assert host.pidfd == -1
        assert host.control.recv(1) == b""  # nobody serves on it
        return said.fault

    def exit_of(self, host: Host) -> int:
        """Wait for `host` to be gone; its status."""
        said = self.hear()
        assert isinstance(said, calls.Exited)
        assert said.host == host.number
        return said.status

    def kill(self, host: Host) -> None:
        signal.pidfd_send_signal(host.pidfd, signal.SIGKILL)

    @contextmanager
    def caller(self, *prefix: str, after: str = "") -> Iterator[Caller]:
        with connected(*prefix, after=after) as sock, caller_of(sock, self.by_pid) as caller:
            yield caller

    @contextmanager
    def host(self, *prefix: str, after: str = "") -> Iterator[Host]:
        """A host for a caller that `prefix` starts."""
        with self.caller(*prefix, after=after) as caller:
            yield self.spawn(caller.identity, caller.rights)
