"""abi.md 4.34."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.host.confine import limits
from cortexfs.linux import seccomp, syscalls
from cortexfs.peers import ancestry
from cortexfs.peers import caller as callers
from cortexfs.peers.caller import Caller, caller_of
from tests.shell.confined import in_child
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, connected, ended, followed, public_directory
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes callers of other users")

NO_POWERS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.fixture
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


def identity_of(*prefix: str, after: str = "") -> hostcalls.Identity:
    with connected(*prefix, after=after) as sock, caller_of(sock, {}) as caller:
        return caller.identity


def as_user(work: Callable[[], object]) -> object:
    """Returns the JSON result of `work`, run in a process of nobody: a user's daemon."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.setgroups([NOBODY, 1])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            answer = work()
        except Fault as fault:
            answer = str(fault)
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(data)


# -- user and groups


def test_user_and_groups_are_those_that_connected() -> None:
    identity = identity_of(*AS_NOBODY)
    assert (identity.uid, identity.gid, sorted(identity.groups)) == (NOBODY, NOBODY, [1, NOBODY])


def test_many_groups_are_all_known() -> None:
    groups = list(range(1000, 1400))
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={','.join(map(str, groups))}")
    assert sorted(identity_of(*prefix).groups) == groups


def test_a_change_of_user_after_connecting_does_not_count() -> None:
    assert identity_of(after="import os; os.setresuid(65534, 65534, 65534)").uid == 0


def test_a_caller_where_the_daemon_is_needs_no_way_followed() -> None:
    with connected(*AS_NOBODY) as sock, caller_of(sock, {}) as caller:
        assert (caller.identity.namespaces, caller.identity.root) == ((), (0, 0))


def test_the_working_directory_is_that_of_the_process(tmp_path: Path) -> None:
    # abi.md 4.34
    after = f"import os; os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})"
    with connected(after=after) as sock, caller_of(sock, {}) as caller:
        assert caller.cwd is not None
        assert os.path.samestat(os.fstat(caller.cwd), (tmp_path / "gone").stat())
        (tmp_path / "gone").rmdir()
    with connected(after=after) as sock:
        (tmp_path / "gone").rmdir()
        with caller_of(sock, {}) as caller:
            assert caller.cwd is not None
            assert os.readlink(f"/proc/self/fd/{caller.cwd}") == f"{tmp_path / 'gone'} (deleted)"


def test_a_caller_that_is_gone_is_nobody() -> None:
    with connected() as sock:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, 77)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert ended(pidfd)
        os.close(pidfd)
        with pytest.raises(Fault) as raised:
            caller_of(sock, {})
    assert raised.value.code == "ESRCH"


def test_no_descriptor_is_left_open() -> None:
    with connected("unshare", "-m") as away, connected() as here:
        before = os.listdir("/proc/self/fd")
        for sock in (here, away):
            with caller_of(sock, {}):
                pass
        assert os.listdir("/proc/self/fd") == before


# -- powers: "at most its capabilities"


def test_root_has_the_powers_that_it_has() -> None:
    assert identity_of().capabilities == syscalls.permitted()


@pytest.mark.parametrize("prefix", [NO_POWERS, ("capsh", "--drop=all", "--shell=/usr/bin/env", "--")])
def test_root_without_powers_has_none(prefix: tuple[str, ...]) -> None:
    identity = identity_of(*prefix)
    assert (identity.uid, identity.capabilities) == (0, 0)


# The client's capabilities as words of effective, permitted and inheritable, low words first.
CAPABILITIES = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
header = struct.pack("=Ii", 0x20080522, 0)
data = ctypes.create_string_buffer(24)
libc.capget(header, data)
words = list(struct.unpack("=6I", data.raw))
def become():
    assert libc.capset(header, struct.pack("=6I", *words)) == 0
"""


def test_powers_of_another_user_since_do_not_count() -> None:
    # With PR_SET_KEEPCAPS the powers stay, but would belong to another uid than the one that connected.
    after = CAPABILITIES + f"libc.prctl(8, 1); os.setresuid({NOBODY}, {NOBODY}, {NOBODY}); become()"
    with connected(after=after) as sock, caller_of(sock, {}) as caller:
        assert b"CapEff:\t0000000000000000" not in Path(f"/proc/{caller.pid}/status").read_bytes()
        assert (caller.identity.uid, caller.identity.capabilities) == (0, 0)


def test_powers_that_are_not_in_effect_do_not_count() -> None:
    drop = CAPABILITIES + "words[0] = words[3] = 0; become()"
    assert identity_of(after=drop).capabilities == 0


def test_a_user_has_no_powers_even_if_lent_some() -> None:
    prefix = (*AS_NOBODY, "--inh-caps=+net_raw", "--ambient-caps=+net_raw")
    assert identity_of(*prefix).capabilities == 0


def test_a_setuid_program_run_after_connecting_lends_nothing() -> None:
    with public_directory() as path:
        program = path / "cat"
        shutil.copy("/bin/cat", program)
        program.chmod(0o4755)
        after = "import os; s.set_inheritable(True); os.write(1, b'connected\\n');"
        after += f"os.execv({str(program)!r}, ['cat'])"
        with connected(*AS_NOBODY, after=after) as sock:
            pid = _pid(sock)
            # The print above came just before the exec. The exec is done once the exe has changed.
            while os.readlink(f"/proc/{pid}/exe") != str(program):
                os.sched_yield()
            assert os.stat(f"/proc/{pid}").st_uid == 0
            with caller_of(sock, {}) as caller:
                assert (caller.identity.uid, caller.identity.capabilities) == (NOBODY, 0)


def _pid(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


def test_root_of_a_user_namespace_has_powers_there_and_who_is_mapped_to_another_none() -> None:
    root = identity_of(*AS_NOBODY, "unshare", "-Ur")
    assert root.uid == NOBODY
    assert root.capabilities
    assert root.namespaces
    other = identity_of(*AS_NOBODY, "unshare", "-U", "--map-user=1000", "--keep-caps")
    assert other.namespaces
    assert other.capabilities == 0


# -- places: "inside its namespaces"


@pytest.mark.parametrize("name", ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"])
def test_every_other_namespace_is_noticed(name: str) -> None:
    flag = {"mnt": "-m", "pid": "-pf", "net": "-n", "ipc": "-i", "uts": "-u", "cgroup": "-C", "user": "-U"}[
        name
    ]
    with connected("unshare", flag) as sock, caller_of(sock, {}) as caller:
        theirs = [os.stat(f"/proc/{caller.pid}/ns/{each}").st_ino for each in syscalls.NAMESPACES]
        ours = [os.stat(f"/proc/self/ns/{each}").st_ino for each in syscalls.NAMESPACES]
        assert list(caller.identity.namespaces) == theirs
        differs = [each for each, a, b in zip(syscalls.NAMESPACES, theirs, ours, strict=True) if a != b]
        assert differs == [name]
        # A root in another mount namespace counts as another root.
        assert (caller.identity.root != (0, 0)) == (name == "mnt")
        with followed(sock, caller) as rights:
            assert len(rights) == (2 if name == "mnt" else 1)


@contextmanager
def at_root(path: Path) -> Iterator[tuple[Caller, int]]:
    """Yields a caller in a chroot, and a descriptor of its root."""
    chroot = connected(after=f"import os; os.chroot({str(path)!r})")
    with chroot as sock, caller_of(sock, {}) as caller, followed(sock, caller) as rights:
        yield caller, rights[1]


def test_a_changed_root_is_noticed() -> None:
    with public_directory() as path, at_root(path) as (caller, root):
        assert caller.identity.namespaces == ()
        assert caller.identity.root[1] == path.stat().st_ino
        assert os.fstat(root).st_ino == path.stat().st_ino


def test_a_second_mount_of_the_root_directory_is_another_root() -> None:
    # It has the same device and inode, but none of the mounts below.
    with public_directory() as path:
        subprocess.run(["mount", "--bind", "/", path], check=True)
        try:
            with at_root(path) as (caller, root):
                assert os.path.samestat(os.fstat(root), os.stat("/"))
                assert caller.identity.root != (0, 0)
        finally:
            subprocess.run(["umount", path], check=True)


def test_the_daemons_root_is_followed_from_another_mount_namespace() -> None:
    # Joining the namespace would take a host to the namespace's root, but the caller kept the daemon's root.
    after = (
        "import ctypes, os; fd = os.open('/', os.O_PATH); ctypes.CDLL(None).unshare(0x20000); os.fchdir(fd)"
    )
    after += "; os.chroot('.')"
    with connected("unshare", "-n", after=after) as sock, caller_of(sock, {}) as caller:
        with followed(sock, caller) as rights:
            assert syscalls.mount_and_inode(rights[1]) == caller.identity.root
        assert caller.identity.root == syscalls.mount_and_inode(b"/")


def test_who_changed_user_since_is_not_followed_into_namespaces() -> None:
    after = "import os, ctypes; ctypes.CDLL(None).unshare(0x20000); os.setresuid(65534, 65534, 65534)"
    with connected(after=after) as sock, pytest.raises(Fault) as raised:
        caller_of(sock, {})
    assert raised.value.code == "EACCES"


# -- abi.md 4.37


def test_a_users_daemon_refuses_others() -> None:
    with connected() as sock:
        refusal = as_user(lambda: caller_of(sock, {}).identity.uid)
        assert str(refusal).startswith(f"EACCES: this daemon serves only uid {NOBODY}")


def test_a_users_daemon_admits_its_user_also_from_a_user_namespace() -> None:
    with connected(*AS_NOBODY) as sock:
        assert as_user(lambda: caller_of(sock, {}).identity.uid) == NOBODY
    with connected(*AS_NOBODY, "unshare", "-Ur") as sock:
        assert as_user(lambda: len(caller_of(sock, {}).identity.namespaces)) == 7


# -- abi.md 4.38

# Connects from an orphan of an orphan, in a session of its own.
ESCAPE = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
if not os.fork():
    os.setsid()
    if not os.fork():
        s.connect({address!r})
        s.recv(1)
    os._exit(0)
"""


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(PATIENCE)
    listener.bind(str(path / "socket"))
    os.chmod(path / "socket", 0o777)
    listener.listen()
    return listener


@pytest.mark.parametrize("in_cgroup", [True, False])
def test_a_descendant_of_a_host_inherits_its_label_and_depth(forks: Forks, in_cgroup: bool) -> None:
    with public_directory() as path, _listener(path) as listener:
        host = forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (), label="worker", depth=2))
        if not in_cgroup:
            for _, place in limits.hierarchies():
                (place / "cgroup.procs").write_text(str(host.pid))
        host.ask(ESCAPE.format(address=str(path / "socket")))
        sock, _ = listener.accept()
        with sock:
            with caller_of(sock, forks.by_pid) as caller:
                assert caller.pid != host.pid
                assert (caller.identity.label, caller.identity.depth) == ("worker", 3)
            # Once the host is unknown, its call is not mistaken for a call of the user.
            with pytest.raises(Fault) as raised:
                caller_of(sock, {})
            assert raised.value.code == "EACCES"


def test_the_host_itself_is_nested_too(forks: Forks) -> None:
    with public_directory() as path, _listener(path) as listener:
        host = forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (), label="worker"))
        host.ask(f"import socket; global s; s = socket.socket(1); s.connect({str(path / 'socket')!r})")
        sock, _ = listener.accept()
        with sock, caller_of(sock, forks.by_pid) as caller:
            assert (caller.pid, caller.identity.label, caller.identity.depth) == (host.pid, "worker", 1)


def test_who_has_no_new_privileges_from_someone_else_is_not_nested(forks: Forks) -> None:
    with connected("setpriv", "--no-new-privs") as sock:
        forks.spawn(hostcalls.Identity(0, 0, (), label="worker"))
        with caller_of(sock, forks.by_pid) as caller:
            assert (caller.identity.label, caller.identity.depth) == ("", 0)


def test_a_daemon_in_a_sandbox_serves_who_is_in_it_too() -> None:
    # abi.md 4.41 refuses a filter that no host of this daemon explains: hosts have the daemon's own.
    def work() -> None:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.close(network=True, unix=True)
        callers._own_filters.cache_clear()
        with connected() as sock, caller_of(sock, {}) as found:
            assert found.identity.uid == os.getuid()

    assert in_child(work) == 0


def group_of(pid: int) -> Path:
    """Returns the cgroup that the process is counted in."""
    kind, place = limits.hierarchies()[0]
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return next(place / path[1:] for _, kinds, path in lines if kinds == kind)


@contextmanager
def in_group(group: Path) -> Iterator[socket.socket]:
    """Yields the connection of a process in that cgroup. Its parents reveal nothing, as in a container."""
    with connected("setpriv", "--no-new-privs") as sock:
        before = group_of(_pid(sock))
        (group / "cgroup.procs").write_text(str(_pid(sock)))
        try:
            yield sock
        finally:
            (before / "cgroup.procs").write_text(str(_pid(sock)))


@pytest.mark.skipif(not limits.hierarchies(), reason="no cgroups here")
def test_a_process_in_a_hosts_cgroup_is_nested_whatever_its_parents_are(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ancestry, "_ancestors", lambda pid: [(pid, b""), (1, b"init")])
    host = forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (), label="worker"))
    with in_group(group_of(host.pid)) as sock, caller_of(sock, forks.by_pid) as caller:
        assert caller.identity.label == "worker"


@pytest.mark.skipif(not limits.hierarchies(), reason="no cgroups here")
def test_the_name_of_a_hosts_cgroup_is_not_enough(forks: Forks) -> None:
    # A user who may create cgroups may give a cgroup any name.
    host = forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (), label="worker"))
    group = limits.hierarchies()[0][1] / "mine" / group_of(host.pid).parent.name / str(host.number)
    group.mkdir(parents=True)
    try:
        with in_group(group) as sock, pytest.raises(Fault, match="has the name of a run's cgroup"):
            caller_of(sock, forks.by_pid)
    finally:
        for made in (group, *group.parents[:2]):
            made.rmdir()
