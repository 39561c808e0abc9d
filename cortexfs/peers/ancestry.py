"""The host that a process is in, as /proc tells by its cgroup and its parents.

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

# A chain of parents is as deep as its processes; pids.max is far below.
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
    """Returns a file of /proc, whole."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, _READ), b""))
    finally:
        os.close(fd)


def is_stopped(pid: int) -> bool:
    """Returns True if a signal has stopped this process: nothing in it goes on."""
    with contextlib.suppress(OSError):  # proc_pid_stat(5); the name before the state may hold anything
        return record(b"/proc/%d/stat" % pid).rpartition(b")")[2].split(maxsplit=1)[0] == b"T"
    return False


def record(path: bytes) -> bytes:
    """The same of a file that the kernel writes at the first read (seq_file, single_open). All of it is of
    one moment, and a short read is the last: the groups of a process can take 700 KiB there."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _READ)
        if len(data) == _READ:
            data += b"".join(iter(lambda: os.read(fd, _READ), b""))
        return data
    finally:
        os.close(fd)


def ancestor_host(pid: int, hosts: Mapping[int, KnownHost]) -> KnownHost | None:
    """The host that `pid` is or descends from; None for a process of no host. For who has
    NoNewPrivs only: every host has it, and no descendant can shed it.

    Two witnesses, and either is enough, but they must not contradict each other. The cgroup of a host,
    where there are any, which uid 0 can leave, and change for that of another host, which is perhaps held to
    less. The chain of parents: a host is a subreaper, and the fork server above it is one too,
    so that orphans stay below the host or, when it has died, below the fork server. A chain that
    comes to the daemon without meeting a live host is therefore of a host that has just died: EACCES,
    as is a chain that cannot be read. A chain that ends elsewhere is of a process that has
    NoNewPrivs from someone else, systemd or bwrap say, and is not nested.

    EACCES too where either witness names another daemon: what it has confined, we would take for a person;
    and where the cgroup alone names a host that is not in it: who may make cgroups may give one any name.

    What this cannot see: without cgroups, an orphan whose host was inside a container's pid
    namespace and has died, as the kernel hands it to that container's init. The fork server
    therefore makes no labelled host in a pid namespace without a cgroup.
    """
    number, group = _cgroup_host(pid)
    by_group = next((host for host in hosts.values() if host.number == number), None)
    if number is not None and by_group is None:
        raise _unknown("it began in a run that has ended")
    by_parents = _host_above(pid, hosts)
    if by_group and by_parents and by_group.number != by_parents.number:
        raise _unknown("its cgroup is that of another one than its parents'")
    if by_group and not by_parents and _cgroup_host(by_group.pid) != (number, group):
        raise _unknown("its cgroup has the name of one, and is another")
    return by_group or by_parents


def _host_above(pid: int, hosts: Mapping[int, KnownHost]) -> KnownHost | None:
    """The live host in the chain of parents."""
    below = False  # a process that says that it is a fork server or a fork of one
    for link in _ancestors(pid):
        if link == os.getpid():
            raise _unknown("it began in a run that has ended")
        was, below = below, _is_fork_server(link, below)
        if was and not below:
            raise _of_another()
        if link in hosts:
            return hosts[link]
    return None


def _unknown(reason: str) -> Fault:
    return Fault("EACCES", f"this call cannot be attributed to a run: {reason}")


def _of_another() -> Fault:
    mend = "run the objects of that mount, or call from outside of its runs"
    return Fault("EACCES", f"you are in a run of another CortexFS, which decides what you may; {mend}")


_STARTING = {b"cortexfs.host.forkserver", b"cortexfs.host.starter"}


def _is_fork_server(pid: int, otherwise: bool) -> bool:
    """Returns True where the process says that it is one, as hosts do, or the starter above it. Returns
    `otherwise` where it ended. A process that pretends to be one is refused, and those of a daemon do not
    hide."""
    try:
        words = contents(b"/proc/%d/cmdline" % pid).split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return otherwise
    return otherwise if words == [b""] else not _STARTING.isdisjoint(words)


def _cgroup_host(pid: int) -> tuple[int | None, bytes]:
    """The number of the host whose cgroup (limits.Groups) holds `pid`, and that cgroup. EACCES if it is
    another daemon's."""
    data = record(b"/proc/%d/cgroup" % pid)
    found = re.search(rb"^.*/cortexfs-(\d+)\.(\d+)/(\d+)(?=/|$)", data, re.MULTILINE)
    if not found:
        return None, b""
    if os.getpid() not in (int(found[1]), int(found[2])):  # the daemon, and its fork server
        raise _of_another()
    return int(found[3]), found[0]


def _ancestors(pid: int) -> list[int]:
    """`pid` and its parents, up to where they end.

    Read until two readings agree, with the processes' start times: then each link was there at the
    moment between them, and no parent had died and its pid been given to another.
    """
    before = _chain(pid)
    for _ in range(8):
        after = _chain(pid)
        if after == before:
            return [link for link, _ in after]
        before = after
    raise _unknown("its parents change faster than they can be read")


def _chain(pid: int) -> list[tuple[int, bytes]]:
    links: list[tuple[int, bytes]] = []
    while pid and len(links) < _MAX_ANCESTORS:
        try:
            # After the name, which may hold anything: state, parent, and the start time as the 20th.
            fields = record(b"/proc/%d/stat" % pid).rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            links.append((pid, b""))  # died while being read: the other reading will differ
            break
        links.append((pid, fields[19]))
        pid = int(fields[1])
    return links
