"""host/vouching.py: the identities that the fork server lets a host take on, whatever the daemon claims."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.core.hostcalls import Forget, Identity, Meet, Met
from cortexfs.linux import syscalls
from tests.shell.confined import in_child
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, connected, connection_of, ended

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="is root's fork server")

USER = Identity(NOBODY, NOBODY, (1, NOBODY))
ROOT = Identity(0, 0, (), syscalls.permitted())


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as found:
        yield found


@pytest.mark.parametrize(
    "identity", [ROOT, Identity(0, 0, ()), USER, replace(hostcalls.DESCRIBING, groups=(0,))]
)
def test_nobody_is_known_by_numbers(forks: Forks, identity: Identity) -> None:
    # issue: "takes an identity only from a connection's descriptor that it reads itself, never from numbers"
    assert forks.refused(identity)[0] == forks.refused(identity, met=1)[0] == "EACCES"


def test_whoever_describes_plugins_needs_nobody(forks: Forks) -> None:
    assert forks.spawn(hostcalls.DESCRIBING).ask("answer = os.getresuid()") == [NOBODY] * 3


@pytest.mark.parametrize(
    "more",
    [
        {"uid": 0},
        {"gid": 0},
        {"groups": (0, 1, NOBODY)},
        {"capabilities": 1},
        {"namespaces": (1, 2, 3, 4, 5, 6, 7)},
        {"root": (1, 1)},
    ],
)
def test_a_host_is_never_more_than_the_connection(forks: Forks, more: dict[str, object]) -> None:
    with connected(*AS_NOBODY) as sock:
        assert forks.refused(replace(USER, **more), sock)[0] == "EACCES"
        assert forks.spawn(USER, sock).ask("answer = os.getuid()") == NOBODY


def test_a_host_may_be_less(forks: Forks) -> None:
    with connected(*AS_NOBODY) as sock:
        less = replace(USER, groups=(1,), label="agent/coder", depth=3, network=False)
        assert forks.spawn(less, sock).ask("answer = os.getgroups()") == [1]
    with connected() as sock:
        weak = Identity(0, 0, tuple(os.getgroups()))
        source = "answer = [line for line in open('/proc/self/status') if line.startswith('CapEff')]"
        assert forks.spawn(weak, sock).ask(source) == ["CapEff:\t" + "0" * 16 + "\n"]


def test_a_pair_of_sockets_is_its_makers(forks: Forks) -> None:
    # an attacker in control of the daemon could create a pair that claims to be of uid 0
    for pair in (socket.socketpair(), socket.socketpair(type=socket.SOCK_SEQPACKET)):
        with pair[0], pair[1]:
            assert forks.refused(Identity(0, 0, ()), pair[0])[0] == "EACCES"


def test_a_pair_that_got_a_name_is_its_makers_still(forks: Forks) -> None:
    # unix(7), autobind: a socket with SO_PASSCRED gets a name by an attempt to connect, even one that fails
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with pytest.raises(OSError):  # noqa: PT011
            ours.connect(b"\0cortexfs-test-nobody-listens")
        assert ours.getsockname()
        assert forks.refused(Identity(0, 0, ()), ours)[0] == "EACCES"


def test_the_end_that_connected_vouches_for_nobody(forks: Forks) -> None:
    # unix(7): on this end, SO_PEERCRED gives the listener's credentials, and many services of root listen
    with socket.socket(socket.AF_UNIX) as service, socket.socket(socket.AF_UNIX) as client:
        service.bind(b"\0cortexfs-test-%d" % os.getpid())
        service.listen()
        client.connect(service.getsockname())
        assert forks.refused(Identity(0, 0, ()), client)[0] == "EACCES"


def test_a_listener_vouches_for_nobody(forks: Forks) -> None:
    # a listener's SO_PEERCRED are its maker's, and the daemon has listeners that root's starter made for it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"\0cortexfs-test-%d" % os.getpid())
        listener.listen()
        assert forks.refused(Identity(0, 0, ()), listener)[0] == "EACCES"


def test_nobody_but_the_daemon_is_heard(forks: Forks) -> None:
    # an attacker in control of the daemon can pass its end on, to a process that connects as the right user
    with connected(*AS_NOBODY) as sock:

        def ask() -> None:
            if forks.send(USER, sock).control.recv(1) == b"":
                raise PermissionError(errno.EACCES, "nobody serves on it")

        assert in_child(ask) == errno.EACCES
        assert forks.spawn(USER, sock).ask("answer = os.getuid()") == NOBODY


def test_it_ends_with_the_daemon_whoever_holds_its_end() -> None:
    with subprocess.Popen(["sleep", "600"]) as daemon, Forks(daemon=daemon.pid) as forks:
        pidfd = os.pidfd_open(forks.process.pid)
        daemon.kill()
        assert ended(pidfd)
        os.close(pidfd)


def test_what_is_no_connection_is_refused(forks: Forks) -> None:
    with socket.socket() as other:
        assert forks.refused(USER, other)[0] == "EACCES"
    with open(os.devnull) as file:
        assert forks.refused(USER, file)[0] == "EACCES"  # type: ignore[arg-type]


def test_somebody_who_was_met_is_known_until_they_part(forks: Forks) -> None:
    with connected(*AS_NOBODY) as sock:
        forks.say(Meet(7), sock)
        assert forks.hear() == Met(7)
    host = forks.send(USER, met=7)  # also when the user has left
    said = forks.hear()
    assert isinstance(said, hostcalls.HostStart)
    assert said.fault is None
    host.pid = said.pid
    assert forks.refused(Identity(0, 0, ()), met=7)[0] == "EACCES"
    assert forks.refused(USER, met=8)[0] == "EACCES"
    forks.say(Forget(7))
    assert forks.refused(USER, met=7)[0] == "EACCES"


def test_of_a_process_that_has_ended_the_powers_are_not_believed(forks: Forks) -> None:
    with forks.caller() as caller:
        signal.pidfd_send_signal(pidfd := os.pidfd_open(caller.pid), signal.SIGKILL)
        assert ended(pidfd)
        os.close(pidfd)
        code, message = forks.refused(caller.identity, caller.connection)
        assert (code, "it has ended" in message) == ("EACCES", True)
        assert forks.spawn(replace(caller.identity, capabilities=0), caller.connection).pid
    with connection_of(USER) as sock:  # the process that connected has ended
        assert forks.spawn(USER, sock).ask("answer = os.getuid()") == NOBODY


def test_a_host_that_starts_can_be_killed(forks: Forks) -> None:
    with connected(*AS_NOBODY) as sock:
        host = forks.spawn(USER, sock)
        forks.say(hostcalls.KillHost(host.number))
        assert forks.exit_of(host) == -signal.SIGKILL
        forks.say(hostcalls.KillHost(host.number))  # killing it twice does no harm
        assert forks.spawn(USER, sock).pid
