"""The fork server, with real processes: hosts start quickly, run alone and stay within their limits. When a
host or the daemon ends, nothing of it stays behind."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.host.confine import limits
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, Host, connection_of, ended
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts hosts of other users")

ROOT = hostcalls.Identity(0, 0, ())
USER = hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY))


@pytest.fixture(params=["root", "user"])
def forks(request: pytest.FixtureRequest) -> Iterator[Forks]:
    """The fork server of a root daemon, with cgroups for its hosts, or of a user's daemon, without them."""
    with Forks(*(AS_NOBODY if request.param == "user" else ())) as forks:
        yield forks


@pytest.fixture
def roots_forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


def needs_cgroups() -> None:
    if not any(os.access(place, os.W_OK) for _, place in limits.hierarchies()):
        pytest.skip("no cgroups here")


def groups_of(forks: Forks) -> list[Path]:
    places = [place for _, place in limits.hierarchies()]
    return [path for place in places for path in place.rglob(f"cortexfs-*.{forks.process.pid}")]


# -- core/hostcalls.py: "takes `Spawn` packets, and answers with `HostStart` and, later, `HostExit`"


def test_a_host_has_its_plugin_and_the_pidfd_is_its_own(forks: Forks) -> None:
    host = forks.spawn(USER)
    assert host.ask("answer = [plugin.name, os.getpid()]") == ["p", host.pid]
    forks.kill(host)
    assert forks.exit_of(host) == -signal.SIGKILL


@pytest.mark.parametrize(("source", "status"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 11)", -11)])
def test_its_end_is_told_with_its_status(forks: Forks, source: str, status: int) -> None:
    host = forks.spawn(USER)
    host.control.send(source.encode())
    assert forks.exit_of(host) == status


def test_a_host_ends_when_the_daemon_closes_its_socket(forks: Forks) -> None:
    one, two = forks.spawn(USER), forks.spawn(USER)
    one.control.close()
    assert forks.exit_of(one) == 0  # no other host holds that socket open
    assert two.ask("answer = 1") == 1


def test_a_host_holds_nothing_but_its_socket(forks: Forks) -> None:
    forks.spawn(USER)
    forks.spawn(USER)
    host = forks.spawn(USER)
    source = "answer = {n: os.readlink(f'/proc/self/fd/{n}') for n in map(int, os.listdir('/proc/self/fd'))"
    found = host.ask(source + " if os.path.exists(f'/proc/self/fd/{n}')}")
    assert found.pop("0") == found.pop("1") == "/dev/null"
    assert found.pop("2").endswith("/errors")
    assert [name.split(":")[0] for name in found.values()] == ["socket"]
    assert host.ask("answer = control.fileno()") == int(*found)


def test_signals_are_as_in_a_fresh_program() -> None:
    # This holds even if the daemon was started by nohup, for example.
    source = "answer = dict(line.split() for line in open('/proc/self/status') if line.startswith('Sig'))"
    with Forks("env", "--block-signal=TERM", "--ignore-signal=HUP") as forks:
        found = forks.spawn(USER).ask(source.replace("'Sig')", "('SigB', 'SigI', 'SigC'))"))
    # posix_spawn(3) of glibc, so make too, leaves the C library's two signals ignored; none can set them.
    found["SigIgn:"] = f"{int(found['SigIgn:'], 16) & ~(0b11 << 31):016x}"
    python_ignores = f"{1 << signal.SIGPIPE - 1:016x}"
    assert found == {"SigBlk:": "0" * 16, "SigCgt:": "0" * 16, "SigIgn:": python_ignores}


def test_a_refusal_is_no_exit_and_hosts_follow_it(forks: Forks) -> None:
    assert (
        forks.refused(hostcalls.Identity(NOBODY, NOBODY, (), root=(1, 1)))[0] == "EACCES"
    )  # no connection vouches for it
    host = forks.spawn(USER)
    forks.kill(host)
    forks.exit_of(host)  # the next message is about this host


def test_what_is_no_spawn_is_passed_over(forks: Forks) -> None:
    forks.control.send(b"garbage")
    assert forks.spawn(USER).ask("answer = 1") == 1


def test_without_descriptors_a_host_is_refused_and_then_the_next_one_starts(roots_forks: Forks) -> None:
    pid = roots_forks.process.pid
    first = roots_forks.spawn(USER)  # the fork server has started
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    faults = []
    with connection_of(USER) as connection:
        for some in range(4, 40):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (some, hard))
            roots_forks.send(USER, connection)
            said = roots_forks.hear()
            assert isinstance(said, hostcalls.HostStart)
            faults.append(said.fault[0] if said.fault else None)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert faults[0] == "EHOSTDOWN"
    assert faults[-1] is None
    assert roots_forks.spawn(USER).ask("answer = 1") == first.ask("answer = 1") == 1


def test_no_descriptor_of_the_fork_server_is_left_open(forks: Forks) -> None:
    def opened() -> list[str]:
        # The answer to this request comes once those before it are done.
        forks.refused(hostcalls.Identity(NOBODY, NOBODY, (), root=(1, 1)))
        return os.listdir(f"/proc/{forks.process.pid}/fd")

    forks.spawn(USER)
    before = opened()
    for _ in range(3):
        host = forks.spawn(USER)
        forks.kill(host)
        forks.exit_of(host)
    assert opened() == before


# -- limits


def test_a_host_has_its_limits(forks: Forks) -> None:
    asked = hostcalls.HostLimits(memory_bytes=300 << 20, processes=5, open_files=99)
    host = forks.spawn(USER, limits=asked)
    got = host.ask(
        "import resource as r; answer = [r.getrlimit(n) for n in (r.RLIMIT_DATA, 7, r.RLIMIT_CORE)]"
    )
    assert got[0] == [300 << 20, -1]  # a soft limit: a shell's children may raise it
    assert got[1][0] == 99
    assert got[2] == [0, 0]
    assert host.ask("answer = len(bytearray(500 << 20))") == "raised MemoryError"
    assert host.ask("answer = [os.dup(0) for _ in range(99)]") == "raised OSError"


FORKS = """
import signal
def fork():
    pid = os.fork()
    if not pid:
        signal.pause()
    return pid
answer = 0
try:
    for answer in range(1000):
        fork()
except BlockingIOError:
    pass
"""


@pytest.mark.parametrize("identity", [USER, ROOT])
def test_processes_are_bounded_for_root_too_where_there_are_cgroups(
    roots_forks: Forks, identity: hostcalls.Identity
) -> None:
    needs_cgroups()
    host = roots_forks.spawn(identity, limits=hostcalls.HostLimits(1 << 30, 5, 256))
    assert host.ask(FORKS) == 4
    # The processes of one host do not count for another.
    assert roots_forks.spawn(identity, limits=hostcalls.HostLimits(1 << 30, 5, 256)).ask(FORKS) == 4


def test_processes_are_bounded_for_a_user_without_cgroups() -> None:
    # RLIMIT_NPROC counts the user's processes on the whole machine, so this needs a user without processes.
    alone = 60000 + os.getpid() % 5000
    with Forks("setpriv", f"--reuid={alone}", f"--regid={alone}", "--clear-groups") as forks:
        host = forks.spawn(hostcalls.Identity(alone, alone, ()), limits=hostcalls.HostLimits(1 << 30, 5, 256))
        assert 1 <= host.ask(FORKS) <= 5


# -- "nothing stays behind when a host ends"

# Each process sends its pid, and the host answers with their states: orphans in sessions of their own.
ESCAPE = """
import signal
read, write = os.pipe()
for _ in range(5):
    if not os.fork():
        os.setsid()
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, os.getpid().to_bytes(4, "little"))
            os.close(write)
            signal.pause()
        os._exit(0)
    os.wait()
os.close(write)
data = b""
while chunk := os.read(read, 20):
    data += chunk
    if len(data) == 20: break
answer = [int.from_bytes(data[n:n + 4], "little") for n in range(0, 20, 4)]
"""

# Processes that fork for ever, as fast as the kernel lets them.
BOMB = """
import signal
read, write = os.pipe()
if not os.fork():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.setsid()
    while True:
        try:
            os.fork()
        except OSError:
            os.write(write, b"x")
answer = os.read(read, 1).decode()
"""


def descendants(pid: int) -> set[int]:
    """Returns the living descendants."""
    below: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            if Path(f"/proc/{child}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z":
                below |= {child} | descendants(child)
    return below


def left(forks: Forks, latest: Host) -> set[int]:
    """Returns the processes of hosts, without the spare in the cgroup of the next host (host/spare.py)."""
    found = set()
    for pid in descendants(forks.process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if f"/{latest.number + 1}\n" not in Path(f"/proc/{pid}/cgroup").read_text():
                found.add(pid)
    return found


def test_escaped_processes_end_with_their_host_and_with_no_other(forks: Forks) -> None:
    other = forks.spawn(USER)
    others = other.ask(ESCAPE)
    host = forks.spawn(USER)
    pids = host.ask(ESCAPE)
    pidfds = [os.pidfd_open(pid) for pid in pids]
    forks.kill(host)
    forks.exit_of(host)
    for pidfd in pidfds:
        assert ended(pidfd)
        os.close(pidfd)
    assert left(forks, host) == {other.pid, *others}


def test_a_fork_bomb_ends_with_its_host(forks: Forks) -> None:
    other = forks.spawn(USER)
    host = forks.spawn(USER, limits=hostcalls.HostLimits(1 << 30, 40, 256))
    assert host.ask(BOMB) == "x"  # it has reached its limit of processes
    assert forks.process.pid in descendants(os.getpid())
    assert len(descendants(forks.process.pid)) >= 20
    forks.kill(host)
    forks.exit_of(host)
    assert left(forks, host) == {other.pid}
    assert other.ask("answer = 1") == 1


def test_a_sibling_that_a_host_makes_of_itself_ends_with_it(forks: Forks) -> None:
    # clone(2) with CLONE_PARENT creates a child of the fork server, which is no descendant of a host.
    source = """
import ctypes, signal
answer = ctypes.CDLL(None).syscall(56, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
if not answer:
    signal.pause()
"""
    if os.uname().machine != "x86_64":
        pytest.skip("knows the number of clone(2) on x86_64 only")
    host = forks.spawn(USER)
    sibling = host.ask(source)
    assert sibling in descendants(forks.process.pid)
    forks.kill(host)
    forks.exit_of(host)
    assert left(forks, host) == set()


@pytest.mark.parametrize("place", [place for _, place in limits.hierarchies()], ids=str)
def test_a_cgroup_of_either_version_ends_all_that_is_in_it(place: Path) -> None:
    base = place / f"test-cortexfs-{os.getpid()}"
    if not os.access(place, os.W_OK):
        pytest.skip("no cgroups here")
    base.mkdir()
    try:
        group = limits.Groups(base, -1).create(7, 10)
        child = os.fork()
        if not child:
            group.enter()
            os.fork()
            os.fork()
            signal.pause()
        pidfd = os.pidfd_open(child)
        while len((group.path / "cgroup.procs").read_text().split()) < 4:
            os.sched_yield()
        while not group.kill():
            os.sched_yield()
        assert ended(pidfd)
        os.close(pidfd)
        os.waitpid(child, 0)
        assert not group.path.exists()
    finally:
        base.rmdir()


def test_an_escape_in_a_containers_pid_namespace_ends_too(roots_forks: Forks) -> None:
    # Orphans of a host that died there go to the container's init: only the cgroup still finds them.
    needs_cgroups()
    with roots_forks.caller("bwrap", "--unshare-pid", "--dev-bind", "/", "/") as caller:
        host = roots_forks.spawn(caller.identity, caller.connection)
        host.ask(ESCAPE)
        procs = [path / str(host.number) / "cgroup.procs" for path in groups_of(roots_forks)]
        pidfds = [os.pidfd_open(int(pid)) for pid in procs[0].read_text().split()]
        assert len(pidfds) == 6
        roots_forks.kill(host)
        roots_forks.exit_of(host)
        for pidfd in pidfds:
            assert ended(pidfd)
            os.close(pidfd)


def test_the_cgroups_are_removed_with_their_hosts_and_with_the_fork_server() -> None:
    needs_cgroups()
    with Forks() as forks:
        host = forks.spawn(USER)
        (group,) = groups_of(forks)
        assert [path.name for path in group.iterdir() if path.is_dir()] == [str(host.number)]
        forks.kill(host)
        forks.exit_of(host)
        assert [path.name for path in group.iterdir() if path.is_dir()] == []
        forks.spawn(USER)
    assert not group.exists()


# -- every way in which the daemon can end


def test_everything_ends_with_the_daemon(forks: Forks) -> None:
    hosts = [forks.spawn(USER) for _ in range(2)]
    pids = [pid for host in hosts for pid in (host.pid, *host.ask(ESCAPE))]
    pidfds = [os.pidfd_open(pid) for pid in pids]
    forks.control.close()
    assert forks.process.wait(PATIENCE) == 0
    for pidfd in pidfds:
        assert ended(pidfd)
        os.close(pidfd)


def test_everything_ends_with_a_daemon_that_is_killed(roots_forks: Forks) -> None:
    # The daemon is a process that holds the other end, and dies without closing it.
    host = roots_forks.spawn(USER)
    pidfds = [host.pidfd, *(os.pidfd_open(pid) for pid in host.ask(ESCAPE))]
    daemon = os.fork()
    if not daemon:
        signal.pause()
    roots_forks.control.close()
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    roots_forks.process.wait(PATIENCE)
    for pidfd in pidfds:
        assert ended(pidfd)
    for pidfd in pidfds[1:]:
        os.close(pidfd)


def test_hosts_die_with_their_fork_server_and_the_next_one_ends_what_they_left() -> None:
    needs_cgroups()
    with Forks() as forks:
        with forks.host(*AS_NOBODY, "unshare", "-Urpf") as inside:
            plain = forks.spawn(USER)
            escaped = [os.pidfd_open(pid) for pid in plain.ask(ESCAPE)]
            (group,) = groups_of(forks)
            forks.process.kill()
            assert ended(plain.pidfd)
            assert ended(inside.pidfd)
        with Forks() as after:
            after.spawn(USER)
            until(lambda: not group.exists())  # a fork server that starts beside this one may end it instead
        for pidfd in escaped:
            assert ended(pidfd)
            os.close(pidfd)
