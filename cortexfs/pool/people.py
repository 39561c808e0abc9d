"""The people that the fork server knows for longer than one call: for a connection, or for lasting work.

    let_go = people.keep(identity, connection)      for as long as the connection is there
    let_go = people.outlast(identity)               for work that goes on without a connection

Rules: people are known by the facts of their connection; the rest of an identity is decided here. The fork
server learns of a person only when needed: for a host, or for work that may outlast the connection. It reads
each person once, whatever the number of their connections and runs. A new fork server reads them again, from
a connection that is still there.
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
        self.connections: list[socket.socket] = []  # still open
        self.is_met = False
        self.was_read = trio.Event()


class People:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._known: dict[_Base, _Person] = {}
        self._number = 0

    def number(self, identity: Identity) -> int:
        """Returns the fork server's number of this person, or of one with no fewer rights; else 0."""
        exact = self._known.get(_base(identity))
        found = [exact] if exact else []
        found += [
            candidate
            for base, candidate in self._known.items()
            if candidate is not exact and _is_no_less(base, identity)
        ]
        for person in found:
            self._introduce(person)
            if person.is_met:
                return person.number
        return found[0].number if found else 0

    def keep(self, identity: Identity, connection: socket.socket) -> Callable[[], None]:
        """Keep this person known until the returned function is called, before the connection is closed."""
        person = self._person(_base(identity))
        person.connections.append(connection)
        return functools.partial(self._let_go, _base(identity), person, connection)

    def outlast(self, identity: Identity, connection: socket.socket | None = None) -> Callable[[], None]:
        """Do the same for work that may go on without a connection. Pass a connection of the person, unless
        they, or a person with no fewer rights, are kept now."""
        base = _base(identity)
        if connection is None and base not in self._known:  # an agent, which never has a connection
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
                self._try_send(hostcalls.Forget(person.number), [])

    async def met(self, identity: Identity) -> None:
        """Have the fork server read this kept person while they are there. Only powers need that: they cannot
        be read of a person who has left."""
        person = self._known.get(_base(identity))
        if person is not None and identity.capabilities:
            self._introduce(person)
            if person.is_met:
                await person.was_read.wait()

    def note_read(self, number: int) -> None:
        """Note that the fork server has read this person."""
        for person in self._known.values():
            if person.number == number:
                person.was_read.set()

    def introduce(self) -> None:
        """Tell a new fork server of all people. Those who have left cannot be read any more."""
        for person in self._known.values():
            person.was_read.set()  # the old fork server sends nothing more
            person.is_met, person.was_read = False, trio.Event()
            self._introduce(person)

    def _introduce(self, person: _Person, connection: socket.socket | None = None) -> None:
        connection = connection or (person.connections[-1] if person.connections else None)
        if connection is not None and not person.is_met:
            person.is_met = self._try_send(hostcalls.Meet(person.number), [connection.fileno()])

    def _try_send(self, message: hostcalls.ToForkServer, rights: Sequence[int]) -> bool:
        """Returns True if the message was sent. The fork server may be gone, and starting again."""
        try:
            self._send(message, rights)
        except Fault:
            return False
        return True
