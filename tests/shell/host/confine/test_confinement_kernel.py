"""A confined host reaches no other process, no forbidden network, and little of the kernel. On a system where
this cannot be had, no host starts.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket

import pytest

from cortexfs.core.errors import Fault
from cortexfs.linux import landlock, seccomp, syscalls
from tests.shell import confined
from tests.shell.confined import ONLY_HERE, Scene, in_child, needs, staged
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, ended

pytestmark = ONLY_HERE
forks, scene = confined.forks, confined.scene


# -- other processes

OTHERS = {
    "signal": "os.kill({outsider}, 0)",
    "signal by descriptor": "signal.pidfd_send_signal(os.pidfd_open({outsider}), 0)",
    "take a descriptor": "call(438, os.pidfd_open({outsider}), 2, 0)",
    "limit": "resource.prlimit({outsider}, resource.RLIMIT_NOFILE, (99, 99))",
    "trace": (
        "call(ptrace, 16, {outsider}, 0, 0)\nos.waitpid({outsider}, 0)\ncall(ptrace, 17, {outsider}, 0, 0)"
    ),
    "read its memory": "call(process_vm_readv, {outsider}, 0, 0, 0, 0, 0)",
    "write its memory": "call(process_vm_writev, {outsider}, 0, 0, 0, 0, 0)",
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_processes_of_the_user_are_out_of_reach(scene: Scene, what: str) -> None:
    needs(what)
    assert scene.both(OTHERS[what]) == ("EPERM", "done")


def test_landlock_alone_keeps_tracers_away(scene: Scene) -> None:
    # The filter does not cover this: /proc/PID/mem is opened by its path.
    view = (("/", "rwx"),)
    assert scene.confined("open('/proc/{outsider}/mem', 'rb')", view=view, network=True) == "EACCES"


# -- network: "network False unless policy allows network:default connect"

NETWORK = {
    "TCP": "socket.socket(socket.AF_INET)",
    "TCP 6": "socket.socket(socket.AF_INET6)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "crypto": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "virtual machines": "socket.socket(socket.AF_VSOCK)",
}


@pytest.mark.parametrize("source", NETWORK.values(), ids=NETWORK.keys())
def test_no_sockets_but_unix_ones_without_network(scene: Scene, source: str) -> None:
    confined, free = scene.both(source)
    if free == "EAFNOSUPPORT":
        pytest.skip("this kernel has no such sockets")
    assert (confined, free) == ("EACCES", "done")
    assert scene.confined(source, network=True) == "done"


TALK = """
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname())
"""


def test_network_where_it_is_allowed(scene: Scene) -> None:
    assert scene.confined(TALK, network=True) == "done"
    assert scene.confined(TALK, network=False) == "EACCES"


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("binding", [False, True])
def test_landlock_alone_keeps_tcp_away(network: bool, binding: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            landlock.restrict([], network=network)
            with socket.socket() as sock:
                if binding:
                    sock.bind(("127.0.0.1", 0))
                else:
                    sock.connect(server.getsockname())

        if syscalls.landlock_abi() < 4:
            pytest.skip("this kernel's Landlock knows nothing of TCP")
        assert in_child(work) == (0 if network else errno.EACCES)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_landlock_alone_closes_abstract_sockets_of_others(kind: socket.SocketKind) -> None:
    needs("abstract")
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(f"\0cortexfs-test-{os.getpid()}")
        if kind == socket.SOCK_STREAM:
            server.listen()

        def confined() -> None:
            landlock.restrict([], network=False)
            connect()

        def connect() -> None:
            socket.socket(socket.AF_UNIX, kind).connect(server.getsockname())

        assert in_child(connect) == 0
        assert in_child(confined) == errno.EPERM


def test_no_root_is_needed() -> None:
    with Forks(*AS_NOBODY) as forks, staged(forks, NOBODY, (1, NOBODY)) as scene:
        assert scene.both("open('{hidden}/file')") == ("EACCES", "done")
        assert scene.both("os.chmod('{hidden}/file', 0o600)") == ("EROFS", "done")
        assert scene.both("os.kill({outsider}, 0)") == ("EPERM", "done")
        assert scene.both("socket.socket(socket.AF_INET)") == ("EACCES", "done")
        assert scene.confined("open('{shown}/file', 'w')") == "done"


# -- the kernel

NAMESPACES = {"user": 0x10000000, "mount and user": 0x10020000, "network and user": 0x50000000}


@pytest.mark.parametrize("flags", NAMESPACES.values(), ids=NAMESPACES.keys())
def test_no_new_namespaces(scene: Scene, flags: int) -> None:
    assert scene.both(f"call(unshare, {flags})") == ("EPERM", "done")
    cloned = f"pid = call(clone, {flags | signal.SIGCHLD}, 0, 0, 0, 0)\n"
    cloned += "pid or os._exit(0)\nos.waitpid(pid, 0)"
    assert scene.both(cloned) == ("EPERM", "done")


def test_flags_that_cannot_be_looked_at_are_of_a_call_that_is_not_there(scene: Scene) -> None:
    assert scene.both("call(clone3, 0, 0)") == ("ENOSYS", "EINVAL")


def test_who_is_confined_has_no_powers_whatever_he_had(scene: Scene) -> None:
    host = scene.host(capabilities=0 if scene.uid else syscalls.permitted())
    status = host.ask("answer = open('/proc/self/status').read()")
    assert {int(word, 16) for word in re.findall(r"Cap(?:Prm|Eff|Bnd|Inh|Amb):\t(\w+)", status)} == {0}
    assert "\nNoNewPrivs:\t1\n" in status


# -- the end of a host stays where it was


def test_a_confined_host_still_ends_with_its_fork_server(scene: Scene) -> None:
    with Forks() as others:
        pidfd = os.pidfd_open(others.spawn(scene.identity()).pid)
        others.process.kill()
        others.process.wait()
        assert ended(pidfd)
        os.close(pidfd)


@pytest.mark.parametrize("network", [False, True])
def test_on_machines_whose_calls_are_not_known_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, network: bool
) -> None:
    monkeypatch.setattr(seccomp, "MACHINES", {})
    with pytest.raises(Fault, match="not known") as raised:
        seccomp.restrict(network=network, metadata=True)
    assert raised.value.code == "EACCES"
