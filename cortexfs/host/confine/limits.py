"""The limits of a host, and the end of all processes that it leaves behind.

Rules: a host sets resource limits upon itself, after it has become the caller. A cgroup of the host's own
counts its processes if the fork server may make one (v1 pids or v2). A cgroup also finds every descendant, in
whatever session or after a double fork. Without one, RLIMIT_NPROC counts (the whole uid, and nothing for
root) and descendants are found by their parents: the fork server is a subreaper, so all processes left by a
dead host are its children.
This file must never know what a plugin or a call is.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from cortexfs.core.hostcalls import HostLimits

PREFIX = "cortexfs-"
# Between two checks that killed processes are dead.
KILLING_SECONDS = 0.005
# A host that does not report by then hangs in its caller's namespaces, or was stopped by its caller.
STARTING_SECONDS = 10.0
_CLEARINGS = 200
_STOPS = 10  # rounds of stopping newborn processes; a full fork bomb takes two or three


def restrict(limits: HostLimits, tasks: int | None) -> None:
    """Limit this process. `tasks` is `tasks_of` its user, or None when a cgroup counts."""
    # Soft only: a shell that a tool starts may raise it again for a compiler. RLIMIT_AS would kill runtimes
    # that reserve address space.
    lower(resource.RLIMIT_DATA, limits.memory_bytes)
    lower(resource.RLIMIT_NOFILE, limits.open_files)
    lower(resource.RLIMIT_CORE, 0, for_good=True)
    if tasks is not None:
        lower(resource.RLIMIT_NPROC, tasks + limits.processes)


def lower(kind: int, most: int, *, for_good: bool = False) -> None:
    """Limit this process, and its children, to `most`, or to less if its hard limit is lower."""
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most if for_good else hard))


def tasks_of(uid: int) -> int:
    """Returns the number of threads of `uid`, as RLIMIT_NPROC counts them. A daemon that is not dumpable
    counts, too: its /proc/PID shows its owner, although the files in it are root's."""
    count = 0
    for pid in pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


class Group:
    """One host's cgroup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts = False  # it limits the number of processes
        self._is_entered = False

    def enter(self) -> None:
        """Put this process, and so its future children, into the group. It may wait for 10 ms, once."""
        if not self._is_entered:
            (self.path / "cgroup.procs").write_text("0")
            self._is_entered = True

    def limit(self, processes: int) -> None:
        """Limit the number of processes in the group, if it can count them."""
        with suppress(FileNotFoundError, PermissionError):  # v2 without the pids controller can still kill
            (self.path / "pids.max").write_text(str(processes))
            self.counts = True

    def kill(self) -> bool:
        """Kill the processes of the group. Returns True if it is empty and gone; call it until then."""
        with suppress(OSError):
            (self.path / "pids.max").write_text("0")  # nobody forks faster than we kill
        with suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")
        with suppress(OSError):
            for pid in (self.path / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class Groups:
    """The directory of cgroups of one fork server, which holds a lock on it while it lives.

    Its name begins with the pid of the daemon, by which peers/ancestry.py recognizes its members.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def find(cls, daemon: int) -> Groups | None:
        """Make a directory for hosts' cgroups. Returns None if that is not permitted.

        Preferably its cgroups count processes. In v2 our own cgroup cannot pass that controller on while
        processes are in it, such as the daemon; the top one can.
        """
        for must_count in (True, False):
            for base in _bases():
                with suppress(OSError):
                    groups = cls._make(base, daemon)
                    if groups.count or not must_count:
                        return groups
                    groups.remove()
        return None

    @classmethod
    def _make(cls, base: Path, daemon: int) -> Groups:
        _clear(base)
        path = base / f"{PREFIX}{daemon}.{os.getpid()}"
        lock = _claim(path)
        for controllers in (base, path):
            with suppress(OSError):  # v1 has no such file; v2 may not let us
                (controllers / "cgroup.subtree_control").write_text("+pids")
        return cls(path, lock)

    @property
    def count(self) -> bool:
        """Returns True if these cgroups limit the number of processes."""
        control = self.path / "cgroup.subtree_control"
        return "pids" in control.read_text().split() if control.exists() else True

    def create(self, host: int, processes: int) -> Group:
        group = Group(self.path / str(host))
        group.path.mkdir()
        try:
            group.limit(processes)
        except OSError:
            group.path.rmdir()
            raise
        return group

    def remove(self) -> None:
        with suppress(OSError):
            self.path.rmdir()
        os.close(self._lock)


def _bases() -> Iterator[Path]:
    """Yields cgroup directories that may hold ours: our own, then the top, of v1 pids, then of v2."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {kind: path.lstrip("/") for _, kinds, path in lines for kind in kinds.split(",")}
    for kind, mount in hierarchies():
        if kind in own:
            yield mount / own[kind]
            yield mount


def hierarchies() -> list[tuple[str, Path]]:
    """Returns kind (as in /proc/PID/cgroup; empty for v2) and place of each usable mounted hierarchy."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "pids" in options.split(","):
            found.append(("pids", Path(place)))
        elif kind == "cgroup2":
            found.append(("", Path(place)))
    return sorted(found, key=lambda each: not each[0])


def _claim(path: Path) -> int:
    """Make the directory and lock it. Between both, another starting fork server may remove it as stale; then
    it is made again. Other users cannot open it, and so cannot lock it."""
    for _ in range(_CLEARINGS):
        with suppress(FileExistsError):
            path.mkdir(0o711)
        with suppress(FileNotFoundError, BlockingIOError):
            return _lock(path)
        time.sleep(KILLING_SECONDS)
    raise TimeoutError(f"{path} is locked by another process")


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise FileNotFoundError(f"{path} was removed before it could be locked")
    except OSError:
        os.close(fd)
        raise
    return fd


def _clear(base: Path) -> None:
    """End what killed fork servers left; a living one holds the lock on its directory."""
    for stale in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = _lock(stale)
            try:
                groups = [Group(path) for path in stale.iterdir() if path.is_dir()]
                for _ in range(_CLEARINGS):
                    if all([group.kill() for group in groups]):
                        break
                    time.sleep(KILLING_SECONDS)
                stale.rmdir()
            finally:
                os.close(lock)  # not before it is gone, or its maker could lock a removed one


def kill_strays(known: Collection[int]) -> bool:
    """Kill our children that are not `known` and all below them. Returns True if there were none.

    Repeat the call until then. They are stopped before they are killed: a fork bomb that is only killed fills
    the places of the dead. A process that does nothing but fork and exit can outrun this for a while; cgroups
    can end it.
    """
    with suppress(OSError):  # no descriptors left to look: some will come free
        strays = _strays(known)
        for _ in range(_STOPS):
            running = {pid for pid, (_, state) in strays.items() if state not in b"Tt"}
            if not running:
                break
            for pid in running:
                _signal(pid, strays[pid][0], signal.SIGSTOP)
            strays = _strays(known)
        for pid, (parent, _) in strays.items():
            _signal(pid, parent, signal.SIGKILL)
        return not strays
    return False


def _strays(known: Collection[int]) -> dict[int, tuple[int, bytes]]:
    """Returns (parent, state) by pid of our living descendants, without the known and those below them."""
    processes = {pid: process for pid in pids() if (process := _parent_and_state(pid))}
    below: dict[int, list[int]] = {}
    for pid, (parent, state) in processes.items():
        if state not in b"ZX":
            below.setdefault(parent, []).append(pid)
    found = [pid for pid in below.get(os.getpid(), ()) if pid not in known]
    for pid in found:  # grows while it is walked
        found += below.get(pid, ())
    return {pid: processes[pid] for pid in found}


def _parent_and_state(pid: int) -> tuple[int, bytes] | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return int(parent), state


def _signal(pid: int, parent: int, number: signal.Signals) -> None:
    """Send a signal to `pid` if it still is that child, and not another process with its number."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            process = _parent_and_state(pid)
            if process is not None and process[0] == parent:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def pids() -> list[int]:
    """Returns all processes that this one can see."""
    return [int(name) for name in os.listdir("/proc") if re.fullmatch(r"\d+", name)]
