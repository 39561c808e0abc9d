"""Vouching for callers: the fork server itself reads from connections as whom a host may act.

Rules: no statement of the daemon makes a caller known. A host is at most the process that connected: the same
user, namespaces and root, no other groups, no more capabilities. If that process has ended, the connection
still tells its user and groups, and nothing else is believed. Only sockets that a listener accepted count as
connections. These have paths; both ends of a socket pair belong to its maker. A listening socket does not
count, as it tells of its maker, too.
This file must never know what a host is for.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.linux import syscalls
from cortexfs.peers import place
from cortexfs.peers.ancestry import KnownHost
from cortexfs.peers.caller import caller_of, check_alive, credentials, gone_fault, pidfd_of


class _Person(NamedTuple):
    identity: Identity
    rights: list[int]  # pidfd and root directory, as far as a host needs them to follow the person

    def close(self) -> None:
        for fd in self.rights:
            os.close(fd)


class Vouching:
    def __init__(self, hosts: Mapping[int, KnownHost]) -> None:
        self._hosts = hosts  # live ones, by pid
        self._people: dict[int, _Person | Fault] = {}

    def meet(self, number: int, connection: int) -> None:
        """Remember the connection's caller until `part`. A failure is raised when the caller is needed."""
        self.part(number)
        try:
            self._people[number] = self._read(connection)
        except Fault as fault:
            self._people[number] = fault
        except OSError as error:
            self._people[number] = Fault("EHOSTDOWN", f"no host can start: {error.strerror}")

    def part(self, number: int) -> None:
        person = self._people.pop(number, None)
        if isinstance(person, _Person):
            person.close()

    @contextmanager
    def rights(self, identity: Identity, number: int, connection: int | None) -> Iterator[list[int]]:
        """Yields the descriptors by which a host follows its caller. Raises EACCES if no connection vouches
        for this identity."""
        if connection is not None:
            person = self._read(connection)
            try:
                yield _of(person, identity)
            finally:
                person.close()
        elif known := self._people.get(number):
            yield _of(known, identity)
        elif _needs_nobody(identity):
            yield []
        else:
            raise Fault("EACCES", f"uid {identity.uid} is not connected any more; call again")

    def _read(self, connection: int) -> _Person:
        try:  # and not fstat(2): a file's file system may never answer
            syscalls.getsockopt(connection, socket.SOL_SOCKET, socket.SO_TYPE, 4)
        except OSError:
            raise _no_connection() from None
        with socket.socket(fileno=os.dup(connection)) as sock:
            # A name in bytes is no path: a pair gets one by a failed connect(2) (unix(7), autobind).
            name = sock.getsockname() if sock.family == socket.AF_UNIX else ""
            if sock.type != socket.SOCK_STREAM or not isinstance(name, str) or not name:
                raise _no_connection()
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # a listener tells of its maker
                raise _no_connection()
            peer = credentials(sock)
            try:
                return self._person(sock)
            except Fault as fault:
                if fault.code != "ESRCH":
                    raise
                return _Person(Identity(peer.uid, peer.gid, peer.groups), [])

    def _person(self, sock: socket.socket) -> _Person:
        with caller_of(sock, self._hosts, lambda uid: True) as caller:
            identity = caller.identity
        try:
            return _Person(identity, following(sock, caller.pid, identity) if identity.is_elsewhere else [])
        except OSError as error:
            raise gone_fault(error) from error


def following(sock: socket.socket, pid: int, identity: Identity) -> list[int]:
    """Returns the descriptors by which a host follows the caller: its pidfd, and any other root."""
    rights = [pidfd_of(sock, pid)]
    try:
        if identity.root != place.HERE.root:
            rights.append(place.root(pid))
            if syscalls.mount_and_inode(rights[1]) != identity.root:
                raise Fault("EACCES", "the calling process has changed its root meanwhile; call again")
        check_alive(rights[0])
    except (Fault, OSError):
        for fd in rights:
            os.close(fd)
        raise
    return rights


def _no_connection() -> Fault:
    return Fault("EACCES", "the descriptor is not a connection of a caller")


def _of(person: _Person | Fault, claim: Identity) -> list[int]:
    if isinstance(person, Fault):
        raise Fault(person.code, person.message)
    known = person.identity
    same = (known.uid, known.gid, known.namespaces, known.root)
    if same != (claim.uid, claim.gid, claim.namespaces, claim.root) or not {*claim.groups} <= {*known.groups}:
        raise Fault("EACCES", f"the call's identity (uid {claim.uid}) is not its connection's; call again")
    if claim.capabilities & ~known.capabilities:
        why = "it has ended, or given up some of its own"
        raise Fault("EACCES", f"the calling process does not have the powers of the call: {why}; call again")
    return person.rights


def _needs_nobody(identity: Identity) -> bool:
    """Returns True for nobody, and for the fork server's own user, if not root: it can become no other."""
    if os.geteuid() == 0:
        return identity == hostcalls.DESCRIBING
    return not identity.is_elsewhere
