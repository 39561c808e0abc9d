"""Unix sockets in a confined host: only the runner may have one. abi.md 4 wants "a call made from inside a
run (an agent's shell that execs /ctx/tool/...)" to work."""

from __future__ import annotations

import errno
import os
import select
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.host.confine import socket_gate, view
from cortexfs.linux import landlock, seccomp, syscalls
from tests.shell import confined
from tests.shell.confined import ONLY_HERE, Scene, in_child, staged
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, Host
from tests.waiting import PATIENCE

pytestmark = ONLY_HERE
forks, scene = confined.forks, confined.scene


UNIX = {
    "stream": "socket.socket(1)",
    "datagrams": "socket.socket(1, socket.SOCK_DGRAM)",
    "packets": "socket.socket(1, socket.SOCK_SEQPACKET)",
    "a pair of datagrams": "socket.socketpair(type=socket.SOCK_DGRAM)",
    "a pair of raw ones": "socket.socketpair(type=socket.SOCK_RAW)",
    "a name that Landlock knows": "socket.socket(1).bind(b'\\0' + os.urandom(9).hex().encode())",
}


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("what", UNIX)
def test_no_unix_socket_leads_out(scene: Scene, what: str, network: bool) -> None:
    # In every version of Landlock, the sockets that Landlock would leave open in a view are closed as well.
    assert scene.both(UNIX[what], network=network) == ("EACCES", "done")


@pytest.mark.parametrize("kind", ["STREAM", "SEQPACKET"])
@pytest.mark.parametrize("before", ["", "b.close()", "a.shutdown(2)", "b.shutdown(2)", "a.detach(); a = b"])
def test_a_pair_stays_a_pair(scene: Scene, kind: str, before: str) -> None:
    with socket.socket(socket.AF_UNIX, getattr(socket, f"SOCK_{kind}")) as server:
        server.bind(str(scene.path / "shown" / "own"))
        (scene.path / "shown" / "own").chmod(0o777)
        server.listen()
        source = f"a, b = socket.socketpair(type=socket.SOCK_{kind}); {before or 'pass'}\n"
        assert scene.confined(source + "a.connect('{shown}/own')") == "EISCONN"


RUNNER = next((path for path in socket_gate.RUNNERS if path.exists() and socket_gate.is_static(path)), None)
needs_runner = pytest.mark.skipif(RUNNER is None, reason="no runner that is linked statically is installed")


@needs_runner
@pytest.mark.parametrize("prefix", [(), AS_NOBODY])
@pytest.mark.parametrize("network", [False, True])
def test_the_runner_reaches_the_socket_beside_its_object(prefix: tuple[str, ...], network: bool) -> None:
    # issue: "(Landlock, so no root is needed)"
    groups = (1, NOBODY) if prefix else ()
    with Forks(*prefix) as forks, staged(forks, NOBODY, groups) as scene:
        forks.device = scene.path.stat().st_dev
        host = scene.host(network=network)
        assert reaches(scene, host, str(RUNNER))
        shutil.copy(str(RUNNER), scene.path / "shown" / "program")
        assert not reaches(scene, host, str(scene.path / "shown" / "program"))
        assert not reaches(scene, host, str(RUNNER), "for fd in range(99): os.dup2(2, fd)")


@needs_runner
def test_the_runner_reaches_nothing_outside_the_mount(scene: Scene) -> None:
    # abi.md 4.43
    host = scene.host()
    assert not reaches(scene, host, str(RUNNER))
    # Not with a descriptor of another object either, even if the host was given it.
    assert not reaches(scene, host, str(RUNNER), "os.dup2(os.open('/proc', os.O_PATH), 9)")
    scene.forks.device = os.stat("/proc").st_dev
    assert not reaches(scene, scene.host(), str(RUNNER))
    scene.forks.device = 0


def reaches(scene: Scene, host: Host, program: str, before: str = "pass") -> bool:
    """Returns True if a runner connects to the socket beside its object."""
    place = scene.path / "shown" / ".run.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        place.chmod(0o777)
        server.listen()
        server.setblocking(False)
        source = f"import os; pid = os.fork()\nif not pid:\n    {before}\n"
        source += f"    os.execv({program!r}, ['runner', {str(scene.path / 'shown' / 'file')!r}])\n"
        host.ask(source + "answer = pid")
        found = connected_or_ended(server, host)
        place.unlink()
    return found


def connected_or_ended(server: socket.socket, host: Host) -> bool:
    """Returns True if the runner connected, and waits for the daemon's answer. A refused runner ends."""
    host.control.send(b"import os; os.waitpid(-1, 0)")
    readable = select.poll()
    readable.register(server, select.POLLIN)
    readable.register(host.control, select.POLLIN)
    ready = readable.poll(PATIENCE * 1000)
    connected = any(fd == server.fileno() for fd, _ in ready)
    if connected:
        server.accept()[0].close()
    assert host.control.recv(100) == b"null"
    return connected


def test_who_asks_without_end_holds_no_other_host_up(scene: Scene) -> None:
    source = """
import os, socket
for _ in range(8):
    if not os.fork():
        while True:
            try:
                socket.socket(socket.AF_UNIX)
            except OSError:
                pass
"""
    scene.host().ask(source)
    assert scene.confined("socket.socket(1)") == "EACCES"


def test_who_asks_and_dies_holds_nobody_up(scene: Scene) -> None:
    source = "for _ in range(50):\n    child = os.fork()\n    if not child:\n        while True:\n"
    source += "            try: socket.socket(1)\n            except OSError: pass\n"
    source += "    os.kill(child, 9)\n    os.waitpid(child, 0)"
    assert scene.confined(source) == "done"
    assert scene.confined("socket.socketpair()") == "done"


def test_a_runner_that_anybody_could_load_code_into_is_not_one(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }")
    for flags, static in (["-static"], True), (["-static-pie"], True), ([], False):
        if subprocess.run(["cc", *flags, "-o", tmp_path / "program", source], check=False).returncode == 0:
            assert socket_gate.is_static(tmp_path / "program") == static
    for junk in (b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 100):
        (tmp_path / "junk").write_bytes(junk)
        assert not socket_gate.is_static(tmp_path / "junk")


def test_where_somebody_else_listens_already_nobody_gets_one() -> None:
    # seccomp(2): EBUSY, "a listener already exists"; a container's manager may be that listener.
    def work() -> None:
        machine = seccomp.MACHINES[os.uname().machine]
        everything = seccomp.program(machine, seccomp.FilterChoice(network=True, unix=seccomp._ALLOW))
        syscalls.filter_syscalls(everything, asks=True)
        assert seccomp.restrict(network=True, metadata=True) is None
        socket.socket(socket.AF_UNIX)

    assert in_child(work) == errno.EACCES


@pytest.mark.parametrize("abi", [1, 9, 99])
def test_no_version_of_landlock_takes_the_place_of_the_gate(
    abi: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Issue: "what is asked of such a kernel includes what the gate did". A version could close the sockets
    # that a view does not show, and none of those in it.
    monkeypatch.setattr(syscalls, "landlock_abi", lambda: abi)
    monkeypatch.setattr(landlock, "restrict", lambda shown, network: None)
    monkeypatch.setattr(seccomp, "restrict", lambda network, metadata: 7)
    for network in (False, True):
        who = hostcalls.Identity(NOBODY, NOBODY, (), view=(), network=network)
        plugin = hostcalls.Plugin("builtin", "1", "python", "cortexfs.tools:tools")
        assert view.Confinement(who, plugin, view.Ground(False)).close() == 7
