"""abi.md 4.35. Each test has a real caller, and a host that took on the caller's identity."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.host.confine.identity import become
from cortexfs.linux import syscalls
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, Host, ended, public_directory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")

NO_POWERS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
STATUS = "answer = dict(line[:-1].split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)"


@pytest.fixture
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.fixture
def users_forks() -> Iterator[Forks]:
    """The fork server of a user's daemon."""
    with Forks(*AS_NOBODY) as forks:
        yield forks


@pytest.fixture
def place() -> Iterator[Path]:
    """A public directory with three files: `nobodys` of nobody and `roots` of root, both 0600, and `file`."""
    with public_directory() as path:
        for name in ("nobodys", "roots", "file"):
            (path / name).write_text(f"outer {name}")
            (path / name).chmod(0o644 if name == "file" else 0o600)
        os.chown(path / "nobodys", NOBODY, NOBODY)
        yield path


def read(host: Host, path: Path) -> object:
    return host.ask(f"answer = open({str(path)!r}).read()")


def chown(host: Host, path: Path) -> object:
    return host.ask(f"answer = os.chown({str(path)!r}, 12, 12)")


def cat(host: Host, path: Path) -> object:
    """Returns the text of the file as read by a program that the host executes."""
    source = f"import subprocess; answer = subprocess.run(['cat', {str(path)!r}], capture_output=True)"
    return host.ask(source + ".stdout.decode()")


# -- users


def test_a_user_is_that_user_and_nothing_more(forks: Forks, place: Path) -> None:
    with forks.host(*AS_NOBODY) as host:
        status = host.ask(STATUS)
        assert {status["Uid"], status["Gid"]} == {"\t".join([str(NOBODY)] * 4)}
        assert sorted(status["Groups"].split()) == ["1", str(NOBODY)]
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0
        assert status["NoNewPrivs"] == "1"
        assert read(host, place / "nobodys") == "outer nobodys"
        assert read(host, place / "roots") == "raised PermissionError"
        assert chown(host, place / "nobodys") == "raised PermissionError"


def test_a_user_cannot_become_root_by_a_setuid_program(forks: Forks, place: Path) -> None:
    subprocess.run(["install", "-m", "4755", "/bin/cat", place / "cat"], check=True)
    source = f"import subprocess; answer = subprocess.run([{str(place / 'cat')!r}, {str(place / 'roots')!r}]"
    with forks.host(*AS_NOBODY) as host:
        assert host.ask(f"{source}, stderr=-3).returncode") == 1


def test_a_host_leads_a_session_and_adopts_orphans(forks: Forks) -> None:
    with forks.host(*AS_NOBODY) as host:
        assert host.ask("answer = [os.getsid(0), os.getpgrp(), os.getpid()]") == [host.pid] * 3
        # The grandchild reports the pid of its parent once its first parent is gone.
        source = """
read, write = os.pipe()
child = os.fork()
if not child:
    if not os.fork():
        while os.getppid() != {pid}: os.sched_yield()
        os.write(write, b"adopted")
    os._exit(0)
os.waitpid(child, 0)
answer = os.read(read, 10).decode()
os.wait()
"""
        assert host.ask(source.format(pid=host.pid)) == "adopted"


def test_a_host_may_look_at_itself_and_begins_with_a_closed_umask(forks: Forks) -> None:
    with forks.host(*AS_NOBODY) as host:
        assert host.ask("answer = open('/proc/self/environ').close()") is None
        assert host.ask("answer = os.umask(0)") == 0o077


# Puts a key into a session keyring of its own, and becomes the command in its arguments.
WITH_KEY = """
import ctypes, os, sys
call = ctypes.CDLL(None, use_errno=True).syscall
assert call(250, 1, None) > 0
assert call(248, b"user", b"cortexfs-test", b"secret", 6, -3) > 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_host_does_not_share_roots_keys() -> None:
    # keyrings(7): a process that possesses a session keyring may search it, whatever its uid.
    if os.uname().machine != "x86_64" or not Path("/proc/keys").exists():
        pytest.skip("knows the number of keyctl(2) on x86_64 only")
    search = "import ctypes; answer = ctypes.CDLL(None).syscall(250, 10, -3, b'user', b'cortexfs-test', 0)"
    with Forks(sys.executable, "-c", WITH_KEY) as forks:
        assert forks.spawn(hostcalls.Identity(NOBODY, NOBODY, ())).ask(search) == -1


# -- powers


@pytest.mark.parametrize("prefix", [NO_POWERS, ("capsh", "--drop=all", "--shell=/usr/bin/env", "--")])
def test_root_without_powers_gains_none(forks: Forks, place: Path, prefix: tuple[str, ...]) -> None:
    with forks.host(*prefix) as host:
        assert read(host, place / "roots") == "outer roots"
        assert read(host, place / "nobodys") == "raised PermissionError"
        assert cat(host, place / "nobodys") == ""
        assert chown(host, place / "roots") == "raised PermissionError"


def test_root_keeps_the_powers_that_it_has_and_passes_them_on(forks: Forks, place: Path) -> None:
    chosen = ("setpriv", "--bounding-set=-all,+dac_override", "--inh-caps=-all")
    with forks.host(*chosen) as host:
        assert cat(host, place / "nobodys") == read(host, place / "nobodys") == "outer nobodys"
        assert chown(host, place / "roots") == "raised PermissionError"
    with forks.host() as host:
        assert int(host.ask(STATUS)["CapEff"], 16) == syscalls.permitted()
        assert chown(host, place / "roots") is None


# -- namespaces


def test_root_of_a_users_namespace_is_still_that_user(forks: Forks, place: Path) -> None:
    with forks.host(*AS_NOBODY, "unshare", "-Ur") as host:
        assert host.ask("answer = os.getuid()") == 0
        assert read(host, place / "nobodys") == "outer nobodys"
        assert read(host, place / "roots") == "raised PermissionError"
        assert host.ask(f"answer = os.chown({str(place / 'roots')!r}, 0, 0)") == "raised PermissionError"
        assert host.ask("answer = __import__('socket').sethostname('x')") == "raised PermissionError"


def test_root_in_a_user_namespace_has_no_power_over_others(forks: Forks, place: Path) -> None:
    with forks.host("unshare", "-Ur") as host:
        assert read(host, place / "roots") == "outer roots"
        assert read(host, place / "nobodys") == "raised PermissionError"


def mounted(place: Path) -> tuple[str, ...]:
    """Returns a command that starts a mount namespace in which `place` holds only `file`, another one."""
    script = f'mount -t tmpfs private {place} && echo -n inner > {place}/file && exec "$@"'
    return ("unshare", "-m", "sh", "-c", script, "sh")


@pytest.mark.parametrize("user", [(), AS_NOBODY])
def test_a_private_mount_is_what_the_tool_sees(forks: Forks, place: Path, user: tuple[str, ...]) -> None:
    with forks.host(*mounted(place), *user) as host:
        assert read(host, place / "file") == "inner"
        assert host.ask(f"answer = os.listdir({str(place)!r})") == ["file"]
    assert (place / "file").read_text() == "outer file"


def test_a_user_with_mounts_of_its_own_sees_them(forks: Forks, place: Path) -> None:
    with forks.host(*AS_NOBODY, "unshare", "-Ur", *mounted(place)) as host:
        assert read(host, place / "file") == "inner"


@pytest.mark.parametrize("flag", ["-n", "-i", "-u", "-C"])
def test_the_other_namespaces_are_the_callers(forks: Forks, flag: str) -> None:
    name = {"-n": "net", "-i": "ipc", "-u": "uts", "-C": "cgroup"}[flag]
    with forks.caller("unshare", flag, *AS_NOBODY) as caller:
        host = forks.spawn(caller.identity, caller.connection)
        theirs = os.readlink(f"/proc/{caller.pid}/ns/{name}")
        assert theirs != os.readlink(f"/proc/self/ns/{name}")
        assert host.ask(f"answer = os.readlink('/proc/self/ns/{name}')") == theirs


def test_a_changed_root_is_the_tools_root(forks: Forks, place: Path) -> None:
    with forks.caller(after=f"import os; os.chroot({str(place)!r})") as caller:
        host = forks.spawn(caller.identity, caller.connection)
        assert sorted(host.ask("answer = os.listdir('/')")) == ["file", "nobodys", "roots"]
        assert host.ask("answer = open('/../../../file').read()") == "outer file"
        assert host.ask("answer = os.getcwd()") == "/"


BWRAP = ("bwrap", "--unshare-pid", "--unshare-net", "--bind", "/", "/", "--dev", "/dev")


@pytest.mark.parametrize("user", [(), AS_NOBODY, (*AS_NOBODY, "bwrap", "--unshare-user", "--bind", "/", "/")])
def test_a_caller_in_a_container_gets_the_containers_processes_and_files(
    forks: Forks, place: Path, user: tuple[str, ...]
) -> None:
    container = (*BWRAP, "--proc", "/proc", "--tmpfs", str(place))
    with forks.caller(*user, *container) as caller:
        host = forks.spawn(caller.identity, caller.connection)
        assert host.ask(f"answer = os.listdir({str(place)!r})") == []
        assert read(host, place / "file") == "raised FileNotFoundError"
        inside = host.ask("answer = os.getpid()")
        assert inside < 100 <= host.pid
        assert host.ask("answer = os.readlink('/proc/self')") == str(inside)
        assert host.ask(f"answer = os.kill({os.getpid()}, 0)") == "raised ProcessLookupError"
        # The daemon's pidfd is of the process that answers, in whatever namespace it is.
        forks.kill(host)
        assert forks.exit_of(host) == -signal.SIGKILL


# -- an identity that cannot be taken on is refused, and no code runs


def test_a_caller_that_went_elsewhere_in_between_is_refused(forks: Forks) -> None:
    with forks.caller(*AS_NOBODY, "unshare", "-Urm") as caller:
        wrong = list(caller.identity.namespaces)
        wrong[1] += 1000
        moved = hostcalls.Identity(NOBODY, NOBODY, (), 0, tuple(wrong), caller.identity.root)
        assert forks.refused(moved, caller.connection)[0] == "EACCES"


def test_a_root_that_is_not_the_callers_is_refused(forks: Forks, place: Path) -> None:
    with forks.caller(after=f"import os; os.chroot({str(place)!r})") as caller:
        above = msgspec.structs.replace(caller.identity, root=syscalls.mount_and_inode(b"/"))
        assert forks.refused(above, caller.connection)[0] == "EACCES"


@pytest.mark.parametrize(
    "identity",
    [
        hostcalls.Identity(0, 0, (), root=(1, 1)),
        hostcalls.Identity(0, 0, (), namespaces=(1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_without_a_way_to_the_callers_place_there_is_no_host(identity: hostcalls.Identity) -> None:
    child = os.fork()
    if not child:
        try:
            become(identity, None, None, lambda _: None)
        except Fault as fault:
            os._exit(fault.errno)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EACCES


def test_an_agents_run_enters_no_pid_namespace_without_a_cgroup(users_forks: Forks) -> None:
    # abi.md 4.38: a descendant of a labelled run keeps the label; orphans would shed it.
    with users_forks.caller(*AS_NOBODY, "unshare", "-Urpf") as caller:
        users_forks.spawn(caller.identity, caller.connection)
        labelled = msgspec.structs.replace(caller.identity, label="worker")
        assert "cgroup" in users_forks.refused(labelled, caller.connection)[1]


def test_a_caller_that_has_gone_is_not_followed(forks: Forks) -> None:
    with forks.caller("unshare", "-n") as caller:
        pidfd = os.pidfd_open(caller.pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert ended(pidfd)
        os.close(pidfd)
        assert forks.refused(caller.identity, caller.connection)[0] == "EACCES"


@pytest.mark.parametrize("ids", [(2**32 - 1, 0), (0, 2**32 - 1)])
def test_the_ids_that_mean_no_change_do_not_leave_a_host_root(forks: Forks, ids: tuple[int, int]) -> None:
    # setresuid(2): "If one of the arguments equals -1, the corresponding value is not changed."
    assert forks.refused(hostcalls.Identity(*ids, ()))[0] == "EACCES"


# -- a user's daemon: "A user's daemon serves that user alone"


def test_a_users_host_is_that_user(users_forks: Forks, place: Path) -> None:
    own = hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY))
    host = users_forks.spawn(own)
    assert read(host, place / "nobodys") == "outer nobodys"
    assert read(host, place / "roots") == "raised PermissionError"
    assert host.ask(STATUS)["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "identity",
    [
        hostcalls.Identity(0, NOBODY, (1, NOBODY)),
        hostcalls.Identity(NOBODY, 0, (1, NOBODY)),
        hostcalls.Identity(NOBODY, NOBODY, (NOBODY,)),
        hostcalls.Identity(NOBODY, NOBODY, (0, 1, NOBODY)),
    ],
)
def test_a_users_daemon_cannot_become_anybody_else(users_forks: Forks, identity: hostcalls.Identity) -> None:
    assert users_forks.refused(identity)[0] == "EACCES"


def test_a_users_daemon_follows_into_namespaces_of_its_user(users_forks: Forks, place: Path) -> None:
    with users_forks.host(*AS_NOBODY, "unshare", "-Ur", *mounted(place)) as host:
        assert read(host, place / "file") == "inner"
        assert host.ask("answer = os.getuid()") == 0
        assert host.ask(STATUS)["CapEff"] != "0" * 16


def test_a_users_daemon_does_not_follow_where_it_may_not(users_forks: Forks, place: Path) -> None:
    with users_forks.caller(*mounted(place), *AS_NOBODY) as caller:
        assert users_forks.refused(caller.identity, caller.connection)[0] == "EACCES"
    with users_forks.caller("unshare", "-n", *AS_NOBODY) as caller:
        assert users_forks.refused(caller.identity, caller.connection)[0] == "EACCES"
    root = f"import os; os.chroot({str(place)!r})"
    with users_forks.caller(after=root) as caller:
        own = hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY), root=caller.identity.root)
        assert users_forks.refused(own, caller.connection)[0] == "EACCES"
