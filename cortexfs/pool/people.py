"""Whom the fork server is to know for longer than one call: who talks over a socket, and whose work goes on.

    let_go = people.keep(identity, connection)      for as long as the connection is there
    let_go = people.outlast(identity)               for what goes on when it is not

Rules: people are known by what a connection says of them; everything else about an identity is decided here.
The fork server is told of nobody before there is need: somebody's host, or work that may outlast their
connection. It reads each of them once, however many of their connections and runs there are. One that takes
the place of another reads them again, from a connection that is there still.
This file must never know what a host is.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

import trio

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity

Send: TypeAlias = Callable[[hostcalls.ToForkServer, Sequence[int]], None]
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
        self.is_met = False
        self.seen = trio.Event()


class People:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._known: dict[_Base, _Person] = {}
        self._number = 0

    def number(self, identity: Identity) -> int:
        """By which the fork server knows this person, or somebody who is no less; 0 where it does not."""
        exact = self._known.get(_base(identity))
        found = [exact] if exact else []
        found += [
            one for base, one in self._known.items() if one is not exact and _is_no_less(base, identity)
        ]
        for person in found:
            self._introduce(person)
            if person.is_met:
                return person.number
        return found[0].number if found else 0

    def keep(self, identity: Identity, connection: socket.socket) -> Callable[[], None]:
        """Have this person be known until the answer is called, which is before the connection is closed."""
        person = self._person(_base(identity))
        person.connections.append(connection)
        return functools.partial(self._let_go, _base(identity), person, connection)

    def outlast(self, identity: Identity, connection: socket.socket | None = None) -> Callable[[], None]:
        """The same for work that may go on when there is no connection. This is a connection of theirs, or
        somebody keeps this person now, or one who is no less."""
        base = _base(identity)
        if connection is None and base not in self._known:  # an agent, of whom there is no connection ever
            base = next((other for other in self._known if _is_no_less(other, identity)), base)
        person = self._person(base)
        self._introduce(person, connection)
        return functools.partial(self._let_go, base, person, None)

    def _person(self, base: _Base) -> _Person:
        if base not in self._known:
            self._number += 1
            self._known[base] = _Person(self._number)
        person = self._known[base]
        person.holders += 1
        return person

    def _let_go(self, base: _Base, person: _Person, connection: socket.socket | None) -> None:
        if connection is not None:
            person.connections.remove(connection)
        person.holders -= 1
        if not person.holders:
            del self._known[base]
            if person.is_met:
                self._told(hostcalls.Forget(person.number), [])

    async def met(self, identity: Identity) -> None:
        """Have the fork server look at this person, who is kept, while they are there. Only powers are to be
        seen of nobody who has left."""
        person = self._known.get(_base(identity))
        if person is not None and identity.capabilities:
            self._introduce(person)
            if person.is_met:
                await person.seen.wait()

    def heard(self, number: int) -> None:
        """The fork server has looked at this person."""
        for person in self._known.values():
            if person.number == number:
                person.seen.set()

    def introduce(self) -> None:
        """Tell another fork server. Of those who have left, nothing can be read any more."""
        for person in self._known.values():
            person.seen.set()  # it says nothing more
            person.is_met, person.seen = False, trio.Event()
            self._introduce(person)

    def _introduce(self, person: _Person, connection: socket.socket | None = None) -> None:
        connection = connection or (person.connections[-1] if person.connections else None)
        if connection is not None and not person.is_met:
            person.is_met = self._told(hostcalls.Meet(person.number), [connection.fileno()])

    def _told(self, message: hostcalls.ToForkServer, rights: Sequence[int]) -> bool:
        """Returns whether the fork server was there to be told: it may just be started again."""
        try:
            self._send(message, rights)
        except Fault:
            return False
        return True
