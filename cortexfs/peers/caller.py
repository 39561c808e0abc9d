"""Who is at the other end of a socket: what the kernel says, never what the peer says.

Main path: `caller_of` reads credentials from the socket, powers, namespaces and root from /proc, and
makes of them the `Identity` under which a host may act for this caller.

Rules
- User and groups are those of connect(2). What /proc adds describes a process that may have executed
  a setuid program since; so powers, namespaces and a changed root count only when all four of its
  uids still are the uid that connected. Namespaces are read first and uids last, so that uids which
  still agree vouch for what was read before.
- The pidfd is of the process that connected, and outlives every reading from /proc/PID: had the pid
  been given to another process meanwhile, the last check would fail. Nothing is remembered by pid.
- The working directory is that of the process, too: a descriptor that it sent could be of anything,
  and closing that could wait for ever (safe_sockets.py).
- Capabilities are those of uid 0 in its own user namespace, and none for anybody else, as a file with
  capabilities, executed after connect(2), would lend them to the tool. (Uid 0 that set SECBIT_NOROOT
  and then executes such a file is the one case where this gives more than connect(2) knew of; it
  stays within the caller's bounding set.)
- Of a process in a confined host, nothing counts but its user: the rest is the host's identity. Such a host
  has mounts of its own (host/confine/readonly_mounts.py), which no descendant can leave: they are no place
  of a caller's.
- A sandbox that no host explains is a stranger's, and a tool would act outside of it: its callers are refused
  unless the daemon's owner says otherwise.
- A user's daemon admits that user alone, from whatever namespace.

This file must never know of objects, frames or policy.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import ESM, Identity
from cortexfs.linux import syscalls
from cortexfs.peers.ancestry import KnownHost, ancestor_host, contents, record

# Not in Python 3.11's socket module.
SO_PEERGROUPS = 59
SO_PEERPIDFD = 77

_CREDENTIALS = struct.Struct("=iII")
_MAX_GROUPS = 65536  # NGROUPS_MAX


class Caller(NamedTuple):
    pid: int
    identity: Identity
    # What a Spawn needs to follow the caller: its pidfd and, when changed, its root directory.
    rights: list[int]
    # The working directory; None when the daemon may not see it, which a user's may not always.
    cwd: int | None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self.rights)
        if self.cwd is not None:
            os.close(self.cwd)


class Credentials(NamedTuple):
    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]


class _Status(NamedTuple):
    """What is of use in /proc/PID/status."""

    uids: frozenset[int]
    permitted: int
    effective: int
    no_new_privs: bool
    filters: int  # of system calls
    deeper: bool  # in a pid namespace below the daemon's


class _Place(NamedTuple):
    """Where a process is: as Identity has it, empty and zeroes for where the daemon is."""

    namespaces: tuple[int, ...]
    root: tuple[int, int]


_HERE = _Place((), (0, 0))


def nobody(_uid: int) -> bool:
    return False


def caller_of(
    sock: socket.socket, hosts: Mapping[int, KnownHost], sandboxed: Callable[[int], bool] = nobody
) -> Caller:
    """The process that connected to `sock`, nested in one of `hosts` (by pid) if it is. `sandboxed` tells the
    users whose processes are served in a sandbox of somebody else's, too.

    Raises Fault EACCES or ESRCH when it is not admitted, or not to be known for certain.
    """
    who = credentials(sock)
    rights = [_pidfd(sock, who.pid)]
    cwd = None
    try:
        cwd = _cwd(who.pid)
        status = _status(who.pid)
        # Every host has that bit, and no descendant can shed it: without it, a process is in none.
        host = _host_of(who, status, hosts, sandboxed) if status.no_new_privs else None
        place, identity = _identity(who, status, host, rights)
        with suppress(PermissionError):  # it is there, and somebody else's
            signal.pidfd_send_signal(rights[0], 0)  # ESRCH: it is gone, and the pid perhaps another's
    except OSError as error:
        _close(rights if cwd is None else [*rights, cwd])
        raise _gone(error) from error
    except Fault:
        _close(rights if cwd is None else [*rights, cwd])
        raise
    if place == _HERE:
        os.close(rights.pop())
    return Caller(who.pid, identity, rights, cwd)


def _host_of(
    who: Credentials, status: _Status, hosts: Mapping[int, KnownHost], sandboxed: Callable[[int], bool]
) -> KnownHost | None:
    """The host that the caller is in. EACCES in a sandbox of somebody else's, and in a plugin's."""
    host = ancestor_host(who.pid, hosts)
    known = _own_filters()  # what the daemon is in itself, its tools are in, too
    if host is not None:
        if host.plugin.sandbox is not None:
            why = f"the plugin {host.plugin.name} has promises in its manifest's [sandbox]"
            raise Fault("EACCES", f"{why}, which objects would not keep, so nothing that it runs may run any")
        # Deno has a filter more than the host that starts it (host/esm/permissions.py).
        known = _status(host.pid).filters + (host.plugin.kind == ESM)
    if status.filters > known and not sandboxed(who.uid):
        why = f"process {who.pid} is in a sandbox (no_new_privs and a filter of system calls)"
        mend = f"the owner of the mount may write sandboxed = [{who.uid}] below [callers] in config.toml"
        raise Fault("EACCES", f"{why}, outside of which a tool would act; {mend}")
    return host


def _identity(
    who: Credentials, status: _Status, host: KnownHost | None, rights: list[int]
) -> tuple[_Place, Identity]:
    """Returns where the caller is, and its identity. Adds a changed root to `rights`."""
    place, powers = _HERE, 0
    if host is None or host.identity.view is None or host.identity.is_elsewhere:
        place, status = _look(who, status, rights)
        powers = _powers(who, place, status)
    identity = Identity(who.uid, who.gid, who.groups, powers, place.namespaces, place.root)
    return place, identity if host is None else _inherited(identity, host)


def _close(rights: list[int]) -> None:
    for number in rights:
        os.close(number)


def peer_uid(sock: socket.socket) -> int:
    """The user who connected, whether this daemon serves them or not."""
    uid: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def credentials(sock: socket.socket) -> Credentials:
    """Who connected, if this daemon serves them."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid <= 0:
        raise Fault("EACCES", "the daemon cannot see your process: you are in an outer pid namespace")
    own = os.geteuid()
    if own not in (0, uid):
        raise Fault("EACCES", f"this daemon serves uid {own} alone; mount one of your own: ctx mount DIR")
    return Credentials(pid, uid, gid, _groups(sock))


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        try:
            data = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)  # the most that Python asks for
        except OSError as error:
            if error.errno != errno.ERANGE:
                raise
            data = syscalls.getsockopt(sock.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, _MAX_GROUPS * 4)
    except OSError as error:
        raise Fault("EACCES", f"the daemon cannot read your groups: {error.strerror}") from error
    return struct.unpack(f"={len(data) // 4}I", data)


def _pidfd(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise _gone(error) from error
    # Before Linux 6.5. A pid that was given away meanwhile goes unnoticed if the connection is held
    # open by a third process; then the uids of its new owner are compared, and nothing more.
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise _gone(error) from error
    if _hung_up(sock):
        os.close(pidfd)
        raise _gone(None)
    return pidfd


def _hung_up(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _gone(error: OSError | None) -> Fault:
    if error is None or error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL, errno.ENODATA):
        # With hidepid, /proc says the same of a process that the daemon may not see.
        return Fault("ESRCH", "the calling process is gone, or hidden from the daemon in /proc")
    return Fault("EACCES", f"the daemon cannot find out who you are: {error.strerror}")


def _look(who: Credentials, status: _Status, rights: list[int]) -> tuple[_Place, _Status]:
    """Returns where the caller is, and its status then. Adds a changed root to `rights`."""
    # Nearly every caller is where the daemon is, and is found to be there in half the time that
    # its namespaces' numbers would take.
    away = any([os.readlink(path % who.pid) != own for path, own in _own_links()])
    away = away or syscalls.mount_and_inode(b"/proc/%d/root" % who.pid) != _own_root()
    if not (away or status.deeper):
        return _HERE, status
    place = _place(who.pid, rights)
    status = _status(who.pid)
    if place != _HERE and status.uids != {who.uid}:
        raise Fault("EACCES", "you have changed your user since you connected, and are in other namespaces")
    if place.namespaces and _has_own_devices(who.pid, place.namespaces):
        raise Fault(
            "EACCES", "your container has device rules that a tool cannot follow; give it a user namespace"
        )
    return place, status


def _has_own_devices(pid: int, namespaces: tuple[int, ...]) -> bool:
    """Whether it sees other files under the device rules of another cgroup, which a host would not be under.

    Root there can make a device node that its own cgroup keeps it from opening. In a user namespace
    of its own nobody can open a device node.
    """
    own = _own_namespaces()
    if namespaces[_MNT] == own[_MNT] or namespaces[_USER] != own[_USER]:
        return False
    return _devices(pid) != _devices(os.getpid())


def _devices(pid: int) -> bytes:
    """The cgroup whose device rules count: of the v1 hierarchy where there is one, else the v2 one."""
    found = dict(line.split(b":", 2)[1:] for line in contents(b"/proc/%d/cgroup" % pid).splitlines())
    return found.get(b"devices", found.get(b"", b""))


def _cwd(pid: int) -> int | None:
    """Opened without looking at it: its file system may be a hung one. The host checks the right to it."""
    try:
        return os.open(b"/proc/%d/cwd" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None


def _place(pid: int, rights: list[int]) -> _Place:
    namespaces, own = _namespaces(pid), _own_namespaces()
    rights.append(os.open(b"/proc/%d/root" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    root = syscalls.mount_and_inode(rights[1])
    # In another mount namespace a root is never ours, whatever its number.
    if root == _own_root() and namespaces[_MNT] == own[_MNT]:
        os.close(rights.pop())
        root = (0, 0)
    return _Place(namespaces if namespaces != own else (), root)


def _namespaces(pid: int) -> tuple[int, ...]:
    return tuple([os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in syscalls.NAMESPACES])


_MNT = list(syscalls.NAMESPACES).index("mnt")


# The daemon's own place, which it never leaves.


@functools.cache
def _own_namespaces() -> tuple[int, ...]:
    return _namespaces(os.getpid())


@functools.cache
def _own_root() -> tuple[int, int]:
    return syscalls.mount_and_inode(b"/")


@functools.cache
def _own_links() -> tuple[tuple[bytes, bytes], ...]:
    """Path and target of what must agree for a caller to be where the daemon is.

    Not mnt: a mount belongs to one mount namespace, so whoever has the daemon's root mount sees the
    daemon's files. Not pid: NSpid in status tells.
    """
    names = [name.encode() for name in syscalls.NAMESPACES if name not in ("mnt", "pid")]
    return tuple((b"/proc/%d/ns/" + name, os.readlink(b"/proc/self/ns/" + name)) for name in names)


def _status(pid: int) -> _Status:
    data = record(b"/proc/%d/status" % pid)
    return _Status(
        frozenset(map(int, _field(data, b"\nUid:\t").split())),
        int(_field(data, b"\nCapPrm:\t"), 16),
        int(_field(data, b"\nCapEff:\t"), 16),
        _field(data, b"\nNoNewPrivs:\t") != b"0",
        _filters(data),
        b"\t" in _field(data, b"\nNSpid:\t"),
    )


def _field(data: bytes, name: bytes) -> bytes:
    start = data.index(name) + len(name)
    return data[start : data.index(b"\n", start)]


@functools.cache
def _own_filters() -> int:
    status = _status(os.getpid())
    return status.filters if status.no_new_privs else 0


def _filters(data: bytes) -> int:
    """Returns the number of filters; before Linux 5.10, 1 for any."""
    if _field(data, b"\nSeccomp:\t") != b"2":
        return 0
    return int(_field(data, b"\nSeccomp_filters:\t")) if b"\nSeccomp_filters:\t" in data else 1


def _powers(who: Credentials, place: _Place, status: _Status) -> int:
    """The capabilities that a host of the caller's may have."""
    powers = status.permitted & status.effective
    if not powers or status.uids != {who.uid}:
        return 0
    foreign = bool(place.namespaces) and place.namespaces[_USER] != _own_namespaces()[_USER]
    return powers if _is_root(who, foreign) else 0


_USER = list(syscalls.NAMESPACES).index("user")


def _is_root(who: Credentials, foreign: bool) -> bool:
    """Whether the caller's uid is 0 in its own user namespace."""
    if not foreign:
        return who.uid == 0
    for line in contents(b"/proc/%d/uid_map" % who.pid).splitlines():
        inside, outside, count = map(int, line.split())
        if inside == 0 and count:
            return who.uid == outside
    return False


def _inherited(identity: Identity, host: KnownHost) -> Identity:
    """The identity of a caller that is in a host: with that host's label and what confines it."""
    own = host.identity
    return replace(
        identity,
        label=own.label,
        depth=own.depth + 1,
        view=own.view,
        caps=own.caps,
        network=own.network,
        delegates=own.delegates,
        unheard=own.unheard or bool(host.plugin.hooks),
    )
