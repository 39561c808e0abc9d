"""Finds the host that a process is in, from its cgroup and its parents in /proc.

Rules: nothing here reads the memory of a process, such as its command line: its user can have all who read
it wait for ever, by a fault that a FUSE mount never answers.
This file must never know of sockets, objects, frames or policy.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Protocol

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity, Plugin
from cortexfs.core.starter_command import PROCESS_NAMES

# A chain of parents is no longer than the number of processes, and pids.max is far below this.
_MAX_ANCESTORS = 4096


class KnownHost(Protocol):
    """The facts about a live host: pool.Host."""

    @property
    def number(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def plugin(self) -> Plugin: ...


_READ = 16384


def contents(path: bytes) -> bytes:
    """Returns the whole of a file of /proc."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def is_stopped(pid: int) -> bool:
    """Returns True if a signal has stopped this process, so that nothing in it runs."""
    with contextlib.suppress(OSError):  # proc_pid_stat(5): the name before the state may hold anything
        return record(b"/proc/%d/stat" % pid).rpartition(b")")[2].split(maxsplit=1)[0] == b"T"
    return False


def record(path: bytes) -> bytes:
    """Returns the same for a file that the kernel writes at the first read (seq_file, single_open). All of it
    is of one moment, and a short read is the last. With the groups of a process it can be 700 KiB."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _READ)
        if len(data) == _READ:
            data += b"".join(iter(lambda: os.read(fd, _READ), b""))
        return data
    finally:
        os.close(fd)


def ancestor_host(pid: int, hosts: Mapping[int, KnownHost]) -> KnownHost | None:
    """Returns the host that `pid` is or descends from; None for a process of no host. Call it only for
    processes with NoNewPrivs: every host has it, and no descendant can shed it.

    There are two witnesses. Either is enough, but they must not contradict each other. The first is the
    cgroup of a host, where there are cgroups. A process of uid 0 can leave it, and even move to the cgroup of
    another host, which may be confined less. The second is the chain of parents. Hosts and the fork server
    above them are subreapers. So an orphan stays below its host or, when the host has died, below the fork
    server. A chain that reaches the daemon without meeting a live host belongs to a host that has just died:
    EACCES. A chain that cannot be read is EACCES too. A chain that ends elsewhere belongs to a process that
    got NoNewPrivs from another program, such as systemd or bwrap, and is not nested.

    EACCES too where either witness names another daemon: a process that it has confined would pass for a
    person here. EACCES too where only the cgroup names a host and that host is not in it: a process that may
    make cgroups may give one any name.

    One case cannot be seen without cgroups: an orphan whose host was inside a container's pid namespace and
    has died, as the kernel hands it to that container's init. The fork server therefore makes no labelled
    host in a pid namespace without a cgroup.
    """
    number, group = _cgroup_host(pid)
    by_group = next((host for host in hosts.values() if host.number == number), None)
    if number is not None and by_group is None:
        raise _unknown("it began in a run that has ended")
    by_parents = _host_above(pid, hosts)
    if by_group and by_parents and by_group.number != by_parents.number:
        raise _unknown("its cgroup belongs to one run, and its parents to another")
    if by_group and not by_parents and _cgroup_host(by_group.pid) != (number, group):
        raise _unknown("its cgroup has the name of a run's cgroup, but that run is not in it")
    return by_group or by_parents


def _host_above(pid: int, hosts: Mapping[int, KnownHost]) -> KnownHost | None:
    """Returns the live host in the chain of parents."""
    below = False  # True if the process before was a fork server or a fork of one
    for link, name in _ancestors(pid):
        if link == os.getpid():
            raise _unknown("it began in a run that has ended")
        # A process that fakes such a name is only refused; those of a daemon never hide theirs.
        was_below, below = below, name in PROCESS_NAMES if name else below
        if was_below and not below:
            raise _of_another()
        if link in hosts:
            return hosts[link]
    return None


def _unknown(reason: str) -> Fault:
    return Fault("EACCES", f"this call cannot be attributed to a run: {reason}")


def _of_another() -> Fault:
    mend = "run the objects of that mount, or call from outside of its runs"
    return Fault("EACCES", f"you are in a run of another CortexFS, which decides for you; {mend}")


def _cgroup_host(pid: int) -> tuple[int | None, bytes]:
    """Returns the number of the host whose cgroup (limits.Groups) holds `pid`, and that cgroup. Raises EACCES
    if it belongs to another daemon."""
    data = record(b"/proc/%d/cgroup" % pid)
    match = re.search(rb"^.*/cortexfs-(\d+)\.(\d+)/(\d+)(?=/|$)", data, re.MULTILINE)
    if not match:
        return None, b""
    if os.getpid() not in (int(match[1]), int(match[2])):  # the daemon, and its fork server
        raise _of_another()
    return int(match[3]), match[0]


def _ancestors(pid: int) -> list[tuple[int, bytes]]:
    """Returns `pid` and its parents, up to the last, with their names. A process that has ended has no name.

    They are read until two readings agree, including the processes' start times. Then each link was there at
    the moment between them: no parent had died and passed its pid to another process.
    """
    before = _chain(pid)
    for _ in range(8):
        after = _chain(pid)
        if after == before:
            return [(link, name) for link, name, _ in after]
        before = after
    raise _unknown("its parents change faster than they can be read")


def _chain(pid: int) -> list[tuple[int, bytes, bytes]]:
    links: list[tuple[int, bytes, bytes]] = []
    while pid and len(links) < _MAX_ANCESTORS:
        try:
            # After the name, which may hold anything, come the state, the parent, and as 20th the start time.
            start, _, end = record(b"/proc/%d/stat" % pid).rpartition(b")")
        except (FileNotFoundError, ProcessLookupError):
            links.append((pid, b"", b""))  # died while being read: the other reading will differ
            break
        fields = end.split()
        links.append((pid, start.partition(b"(")[2], fields[19]))
        pid = int(fields[1])
    return links
