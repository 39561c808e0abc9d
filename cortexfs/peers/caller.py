"""The process at the other end of a socket, as the kernel reports it, never as the peer does.

Main path: `caller_of` reads credentials from the socket, and powers, namespaces and root from /proc. From
these it makes the `Identity` under which a host may act for this caller. The daemon has another process look
where the caller is (`Peer`, pool/callers.py).

Rules
- User and groups are those of connect(2). /proc describes a process that may have executed a setuid program
  since. So powers, namespaces and a changed root count only while all four of its uids are the uid that
  connected. The uids of a process that is elsewhere are read again, and last: if they still agree, they vouch
  for everything that was read before.
- Powers are read before the place of the process: a process that is here then had its powers here.
- The pidfd is of the process that connected, and outlives every reading from /proc/PID. If the pid had been
  given to another process meanwhile, the last check would fail. Nothing is remembered by pid.
- The working directory is read from the process too. A descriptor that the process sent could be of anything,
  and closing it could wait for ever (safe_sockets.py).
- Only uid 0 in its own user namespace has capabilities. A file with capabilities, executed after connect(2),
  would otherwise lend them to the tool. (One case gives more than connect(2) knew of: uid 0 that set
  SECBIT_NOROOT and then executes such a file. It stays within the caller's bounding set.)
- Of a process in a confined host only its user counts; the rest is the host's identity. Such a host has its
  own mounts (host/confine/readonly_mounts.py), which no descendant can leave: they are no place of a caller.
- A sandbox that no host explains belongs to another program, and a tool would act outside of it. Its callers
  are refused unless the daemon's owner allows them.
- A user's daemon admits only that user, from any namespace.

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
from cortexfs.peers import place
from cortexfs.peers.ancestry import KnownHost, ancestor_host, contents, record
from cortexfs.peers.place import HERE, MNT, USER, Place, SeenPlace, own_namespaces

# Not in Python 3.11's socket module.
SO_PEERGROUPS = 59
SO_PEERPIDFD = 77

_CREDENTIALS = struct.Struct("=iII")
_MAX_GROUPS = 65536  # NGROUPS_MAX


class Caller(NamedTuple):
    pid: int
    identity: Identity
    # The working directory; None when the daemon may not see it, which can happen to a user's daemon.
    cwd: int | None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.cwd is not None:
            os.close(self.cwd)


class Credentials(NamedTuple):
    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]


class _Status(NamedTuple):
    """The parts of /proc/PID/status that count here."""

    uids: frozenset[int]
    permitted: int
    effective: int
    no_new_privs: bool
    filters: int  # of system calls


def nobody(_uid: int) -> bool:
    return False


def caller_of(
    sock: socket.socket, hosts: Mapping[int, KnownHost], sandboxed: Callable[[int], bool] = nobody
) -> Caller:
    """Returns the process that connected to `sock`, nested in one of `hosts` (by pid) if it is. `sandboxed`
    tells for a uid whether its processes in a foreign sandbox are served too.

    Raises Fault EACCES or ESRCH when it is not admitted, or cannot be known for certain.
    """
    process = credentials(sock)
    try:
        peer = Peer(sock, process, hosts, sandboxed)
        try:
            return peer.caller(place.place_of(process.pid))
        finally:
            peer.close()
    except OSError as error:
        raise gone_fault(error) from error


class Peer:
    """The work of `caller_of` in two steps, between which its place is looked up. Raises OSError, too."""

    def __init__(
        self,
        sock: socket.socket,
        process: Credentials,
        hosts: Mapping[int, KnownHost],
        sandboxed: Callable[[int], bool],
    ) -> None:
        self._process = process
        self._pidfd = pidfd_of(sock, process.pid)
        try:
            self._status = _status(process.pid)
            # Every host has that bit, and no descendant can shed it: without it, a process is in no host.
            is_nested = self._status.no_new_privs
            self._host = _host_of(process, self._status, hosts, sandboxed) if is_nested else None
        except BaseException:
            os.close(self._pidfd)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        os.close(self._pidfd)

    def caller(self, seen_place: SeenPlace) -> Caller:
        """Returns the caller. `seen_place` is its place, seen since. Its descriptor goes to the caller or is
        closed."""
        try:
            identity = self._identity(seen_place.place)
            check_alive(self._pidfd)
        except BaseException:
            seen_place.close()
            raise
        return Caller(self._process.pid, identity, seen_place.cwd)

    def _identity(self, where: Place) -> Identity:
        process, host = self._process, self._host
        if host is not None and host.identity.view is not None and not host.identity.is_elsewhere:
            return _inherited(Identity(process.uid, process.gid, process.groups), host)
        if where != HERE:
            self._status = _status(process.pid)
            _check(process, self._status, where)
        powers = _powers(process, where, self._status)
        identity = Identity(process.uid, process.gid, process.groups, powers, where.namespaces, where.root)
        return identity if host is None else _inherited(identity, host)


def check_alive(pidfd: int) -> None:
    """Raises OSError ESRCH if the process is gone, as its pid may be another's now."""
    with suppress(PermissionError):  # the process is there, and belongs to another user
        signal.pidfd_send_signal(pidfd, 0)


def _host_of(
    process: Credentials, status: _Status, hosts: Mapping[int, KnownHost], sandboxed: Callable[[int], bool]
) -> KnownHost | None:
    """Returns the caller's host. Raises EACCES for one in a foreign sandbox, or in a plugin's [sandbox]."""
    host = ancestor_host(process.pid, hosts)
    filters = _own_filters()  # the daemon's tools inherit the daemon's own filters
    if host is not None:
        if host.plugin.sandbox is not None:
            why = "objects would not keep the limits of its manifest's [sandbox]"
            raise Fault("EACCES", f"programs of the plugin {host.plugin.name} may not run objects: {why}")
        # Deno has one filter more than the host that starts it (host/esm/permissions.py).
        filters = _status(host.pid).filters + (host.plugin.kind == ESM)
    if status.filters > filters and not sandboxed(process.uid):
        why = f"process {process.pid} is in a sandbox (no_new_privs and a filter of system calls)"
        mend = (
            f"the owner of the mount may allow it: sandboxed = [{process.uid}] below [callers] in config.toml"
        )
        raise Fault("EACCES", f"{why}, and a tool would run outside of it; {mend}")
    return host


def peer_uid(sock: socket.socket) -> int:
    """Returns the user who connected, even one whom this daemon does not serve."""
    uid: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def credentials(sock: socket.socket) -> Credentials:
    """Returns the credentials of the process that connected, if this daemon serves its user."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid <= 0:
        raise Fault("EACCES", "the daemon cannot see your process: you are in an outer pid namespace")
    own = os.geteuid()
    if own not in (0, uid):
        raise Fault("EACCES", f"this daemon serves only uid {own}; mount your own: ctx mount DIR")
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


def pidfd_of(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise gone_fault(error) from error
    # Before Linux 6.5: a reused pid goes unnoticed if a third process holds the connection open. Then the
    # uids of the pid's new owner are compared, and no more.
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise gone_fault(error) from error
    if _hung_up(sock):
        os.close(pidfd)
        raise gone_fault(None)
    return pidfd


def _hung_up(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def gone_fault(error: OSError | None) -> Fault:
    if error is None or error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL, errno.ENODATA):
        # With hidepid, /proc reports the same for a process that the daemon may not see.
        return Fault("ESRCH", "the calling process is gone, or hidden from the daemon in /proc")
    return Fault("EACCES", f"the daemon cannot find out who you are: {error.strerror}")


def _check(process: Credentials, status: _Status, where: Place) -> None:
    """Raises EACCES if the caller is where a host cannot follow."""
    if status.uids != {process.uid}:
        raise Fault("EACCES", "you are in other namespaces and have changed your user since; connect again")
    if where.namespaces and _has_own_devices(process.pid, where.namespaces):
        raise Fault(
            "EACCES", "your container has device rules that a tool cannot follow; give it a user namespace"
        )


def _has_own_devices(pid: int, namespaces: tuple[int, ...]) -> bool:
    """Returns True if the caller has other files, under the device rules of another cgroup. A host would not
    be under these rules.

    Root there can make a device node that its own cgroup keeps it from opening. In a user namespace of its
    own, a process cannot open a device node.
    """
    own = own_namespaces()
    if namespaces[MNT] == own[MNT] or namespaces[USER] != own[USER]:
        return False
    return _devices(pid) != _devices(os.getpid())


def _devices(pid: int) -> bytes:
    """Returns the cgroup whose device rules count: in the v1 hierarchy if there is one, else in v2."""
    found = dict(line.split(b":", 2)[1:] for line in contents(b"/proc/%d/cgroup" % pid).splitlines())
    return found.get(b"devices", found.get(b"", b""))


def _status(pid: int) -> _Status:
    data = record(b"/proc/%d/status" % pid)
    return _Status(
        frozenset(map(int, _field(data, b"\nUid:\t").split())),
        int(_field(data, b"\nCapPrm:\t"), 16),
        int(_field(data, b"\nCapEff:\t"), 16),
        _field(data, b"\nNoNewPrivs:\t") != b"0",
        _filters(data),
    )


def _field(data: bytes, name: bytes) -> bytes:
    start = data.index(name) + len(name)
    return data[start : data.index(b"\n", start)]


@functools.cache
def _own_filters() -> int:
    status = _status(os.getpid())
    return status.filters if status.no_new_privs else 0


def _filters(data: bytes) -> int:
    """Returns the number of filters; before Linux 5.10, 1 for any number."""
    if _field(data, b"\nSeccomp:\t") != b"2":
        return 0
    return int(_field(data, b"\nSeccomp_filters:\t")) if b"\nSeccomp_filters:\t" in data else 1


def _powers(process: Credentials, where: Place, status: _Status) -> int:
    """Returns the capabilities that a host of the caller may have."""
    powers = status.permitted & status.effective
    if not powers or status.uids != {process.uid}:
        return 0
    foreign = bool(where.namespaces) and where.namespaces[USER] != own_namespaces()[USER]
    return powers if _is_root(process, foreign) else 0


def _is_root(process: Credentials, foreign: bool) -> bool:
    """Returns True if the caller's uid is 0 in its own user namespace."""
    if not foreign:
        return process.uid == 0
    for line in contents(b"/proc/%d/uid_map" % process.pid).splitlines():
        inside, outside, count = map(int, line.split())
        if inside == 0 and count:
            return process.uid == outside
    return False


def _inherited(identity: Identity, host: KnownHost) -> Identity:
    """Returns the identity of a caller in a host: with the host's label and all that confines the host."""
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
        call=own.call,
        script=own.script,
        scratch=own.scratch,
    )
