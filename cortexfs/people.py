"""Whom the fork server is to know for longer than one call: who talks over a socket, and whose work goes on.

Rules: people are known by what a connection says of them; everything else about an identity is decided here.
The fork server reads each of them once, however many of their connections and runs there are. One that takes
the place of another reads them again, from a connection that is there still.
This file must never know what a host is.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

from cortexfs.core import calls
from cortexfs.core.calls import Identity
from cortexfs.core.errors import Fault

Send: TypeAlias = Callable[[calls.ToForkServer, Sequence[int]], None]
_Base: TypeAlias = tuple[int, int, tuple[int, ...], int, tuple[int, ...], tuple[int, int]]


def _base(of: Identity) -> _Base:
    return of.uid, of.gid, of.groups, of.capabilities, of.namespaces, of.root


def _is_no_less(base: _Base, than: Identity) -> bool:
    uid, gid, groups, capabilities, *place = base
    if (uid, gid, *place) != (than.uid, than.gid, than.namespaces, than.root):
        return False
    return not than.capabilities & ~capabilities and {*than.groups} <= {*groups}


class _Person:
    def __init__(self, number: int) -> None:
        self.number = number
        self.holders = 0
        self.connections: list[socket.socket] = []  # that are there still


class People:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._known: dict[_Base, _Person] = {}
        self._number = 0

    def number(self, identity: Identity) -> int:
        """By which the fork server knows this person, or somebody who is no less; 0 where it does not."""
        if person := self._known.get(_base(identity)):
            return person.number
        return next((one.number for base, one in self._known.items() if _is_no_less(base, identity)), 0)

    def keep(self, identity: Identity, connection: socket.socket | None = None) -> Callable[[], None]:
        """Have this person be known until the answer is called. Without a connection, somebody else keeps
        them now. Raises a Fault where the fork server cannot be told."""
        base = _base(identity)
        person = self._known.get(base)
        if person is None:
            self._number += 1
            person = _Person(self._number)
        if connection is not None:
            if not person.connections:
                self._send(calls.Meet(person.number), [connection.fileno()])
            person.connections.append(connection)
        person.holders += 1
        self._known[base] = person
        return functools.partial(self._let_go, base, person, connection)

    def _let_go(self, base: _Base, person: _Person, connection: socket.socket | None) -> None:
        if connection is not None:
            person.connections.remove(connection)
        person.holders -= 1
        if not person.holders:
            del self._known[base]
            with contextlib.suppress(Fault):  # it is gone, or busy: then it knows them until it ends
                self._send(calls.Part(person.number), [])

    def introduce(self) -> None:
        """Tell another fork server. Of those who have left, nothing can be read any more."""
        for person in self._known.values():
            if person.connections:
                with contextlib.suppress(Fault):
                    self._send(calls.Meet(person.number), [person.connections[-1].fileno()])
