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
- Capabilities are those of uid 0 in its own user namespace, and none for anybody else, as a file with
  capabilities, executed after connect(2), would lend them to the tool. (Uid 0 that set SECBIT_NOROOT
  and then executes such a file is the one case where this gives more than connect(2) knew of; it
  stays within the caller's bounding set.)
- A user's daemon admits that user alone, from whatever namespace.

This file must never know of objects, frames or policy.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import signal
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from cortexfs.core.calls import Identity
from cortexfs.core.errors import Fault
from cortexfs.host import linux

# Not in Python 3.11's socket module.
SO_PEERGROUPS = 59
SO_PEERPIDFD = 77

_CREDENTIALS = struct.Struct("=iII")
_MAX_GROUPS = 65536  # NGROUPS_MAX
_STATUS = re.compile(
    rb"\nUid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)\n.*\nCapPrm:\t(\w+)\nCapEff:\t(\w+)\n.*\nNoNewPrivs:\t(\d)",
    re.DOTALL,
)
# A chain of parents is as deep as its processes; pids.max is far below.
_MAX_ANCESTORS = 4096


class KnownHost(Protocol):
    """What is asked of a live host: hosts.Host."""

    @property
    def number(self) -> int: ...
    @property
    def identity(self) -> Identity: ...


class Caller(NamedTuple):
    pid: int
    identity: Identity
    # What a Spawn needs to follow the caller: its pidfd and, when changed, its root directory.
    rights: list[int]
    cwd: int | None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        """Close `rights`; `cwd` is its giver's."""
        _close(self.rights)


class Credentials(NamedTuple):
    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]


class _Seen(NamedTuple):
    """What /proc says of a process."""

    uids: tuple[int, ...]
    capabilities: int
    no_new_privs: bool


def caller_of(sock: socket.socket, hosts: Mapping[int, KnownHost], cwd: int | None) -> Caller:
    """The process that connected to `sock`, nested in one of `hosts` (by pid) if it is.

    Raises Fault EACCES or ESRCH when it is not admitted, or not to be known for certain.
    """
    who = credentials(sock)
    with contextlib.ExitStack() as kept:
        rights = [_pidfd(sock, who.pid)]
        kept.callback(_close, rights)
        with _readable():
            identity, nested = _identity(who, rights)
            if nested:
                identity = _inherit(identity, who.pid, hosts)
            signal.pidfd_send_signal(rights[0], 0)  # ESRCH: it is gone, and the pid perhaps another's
        if not identity.namespaces and identity.root == (0, 0):
            os.close(rights.pop())
        kept.pop_all()
    return Caller(who.pid, identity, rights, cwd)


def _close(rights: list[int]) -> None:
    for number in rights:
        os.close(number)


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
    for count in (64, _MAX_GROUPS):
        try:
            data = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, count * 4)
        except OSError as error:
            if error.errno == errno.ERANGE and count < _MAX_GROUPS:
                continue
            raise Fault("EACCES", "the daemon cannot read your groups") from error
        return struct.unpack(f"={len(data) // 4}I", data)
    raise AssertionError("the second count is the kernel's own limit")


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


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _gone(error) from error


def _identity(who: Credentials, rights: list[int]) -> tuple[Identity, bool]:
    """The identity, with a changed root added to `rights`; and whether it may be nested."""
    own_namespaces, own_root = _own()
    namespaces = _namespaces(who.pid)
    root_path = b"/proc/%d/root" % who.pid
    root = linux.mount_and_inode(root_path)
    elsewhere = namespaces != own_namespaces
    # In another mount namespace a root is never ours, whatever its inode.
    moved = root != own_root or namespaces[1] != own_namespaces[1]
    if moved:
        rights.append(os.open(root_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        root = linux.mount_and_inode(rights[-1])
    seen = _status(who.pid)
    steady = all(uid == who.uid for uid in seen.uids)
    if not steady and (elsewhere or moved):
        raise Fault("EACCES", "you have changed your user since you connected, and are in other namespaces")
    powers = seen.capabilities if steady and seen.capabilities else 0
    if powers and not _is_root(who, namespaces[0] != own_namespaces[0]):
        powers = 0
    identity = Identity(
        who.uid,
        who.gid,
        who.groups,
        powers,
        namespaces if elsewhere else (),
        root if moved else (0, 0),
    )
    return identity, seen.no_new_privs


@functools.cache
def _own() -> tuple[tuple[int, ...], tuple[int, int]]:
    """The daemon's own namespaces and root, which it never leaves."""
    return _namespaces(os.getpid()), linux.mount_and_inode(b"/")


def _namespaces(pid: int) -> tuple[int, ...]:
    return tuple([os.stat(path % pid).st_ino for path in _NAMESPACE_PATHS])


_NAMESPACE_PATHS = tuple(b"/proc/%%d/ns/%s" % name.encode() for name in linux.NAMESPACES)


def _status(pid: int) -> _Seen:
    found = _STATUS.search(_contents(b"/proc/%d/status" % pid))
    if found is None:
        raise OSError(errno.EPROTO, "/proc/PID/status is not as documented in proc(5)")
    *uids, permitted, effective, sealed = found.groups()
    return _Seen(tuple(map(int, uids)), int(permitted, 16) & int(effective, 16), sealed != b"0")


def _contents(path: bytes) -> bytes:
    """A file of /proc in one read, so that it is of one moment."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 16384)
    finally:
        os.close(fd)


def _is_root(who: Credentials, foreign: bool) -> bool:
    """Whether the caller's uid is 0 in its own user namespace."""
    if not foreign:
        return who.uid == 0
    for line in _contents(b"/proc/%d/uid_map" % who.pid).splitlines():
        inside, outside, count = map(int, line.split())
        if inside == 0 and count:
            return who.uid == outside
    return False


# -- calls from inside a run


def _inherit(identity: Identity, pid: int, hosts: Mapping[int, KnownHost]) -> Identity:
    host = ancestor_host(pid, hosts)
    if host is None:
        return identity
    return replace(identity, label=host.identity.label, depth=host.identity.depth + 1)


def ancestor_host(pid: int, hosts: Mapping[int, KnownHost]) -> KnownHost | None:
    """The host that `pid` is or descends from; None for a process of no host. For who has
    NoNewPrivs only: every host has it, and no descendant can shed it.

    Two witnesses, and either is enough. The cgroup of a host, where there are any, which only uid 0
    can leave. The chain of parents: a host is a subreaper, and the fork server above it is one too,
    so that orphans stay below the host or, when it has died, below the fork server. A chain that
    comes to the daemon without meeting a live host is therefore of a host that has just died: EACCES,
    as is a chain that cannot be read. A chain that ends elsewhere is of a process that has
    NoNewPrivs from someone else, systemd or bwrap say, and is not nested.

    What this cannot see: without cgroups, an orphan whose host was inside a container's pid
    namespace and has died, as the kernel hands it to that container's init. The fork server
    therefore makes no labelled host in a pid namespace without a cgroup.
    """
    number = _cgroup_host(pid)
    if number is not None:
        for host in hosts.values():
            if host.number == number:
                return host
        raise _unknown("it began in a run that has ended")
    for link in _ancestors(pid):
        if link in hosts:
            return hosts[link]
        if link == os.getpid():
            raise _unknown("it began in a run that has ended")
    return None


def _unknown(reason: str) -> Fault:
    return Fault("EACCES", f"this call cannot be attributed to a run: {reason}")


def _cgroup_host(pid: int) -> int | None:
    """The number of the host whose cgroup (limits.Groups) holds `pid`."""
    data = _contents(b"/proc/%d/cgroup" % pid)
    found = re.search(rb"/cortexfs-%d\.\d+/(\d+)(?:/|$)" % os.getpid(), data, re.MULTILINE)
    return int(found[1]) if found else None


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
            fields = _contents(b"/proc/%d/stat" % pid).rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            links.append((pid, b""))  # died while being read: the other reading will differ
            break
        links.append((pid, fields[19]))
        pid = int(fields[1])
    return links
