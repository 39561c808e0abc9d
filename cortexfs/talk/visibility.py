"""The sessions that a client's keys mean, and which of all sessions are among these.

Rules: a temp session is its connection's, a private one its user's. An agent of a user's own has no
shared sessions. This file must never know what is said in a session.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from cortexfs.core.registry import Key as ObjectKey
from cortexfs.core.registry import is_own, plain
from cortexfs.core.talk.requests import Scope, SessionKey
from cortexfs.sessions.layout import Address, Space
from cortexfs.talk.session import LiveSession

ADDRESSES = 4096  # of sessions, that need not be made anew


class ClientView(NamedTuple):
    """A client's."""

    object: ObjectKey
    uid: int
    number: int  # of his connection

    @functools.lru_cache(ADDRESSES)  # noqa: B019  # of a tuple: nothing is kept alive but some words
    def address(self, key: SessionKey) -> Address:
        if key.scope == "temp":
            space = Space(f"temp/{key.owner}", self.uid)
        else:
            space = Space.shared() if key.scope == "shared" else Space.private(key.owner)
        return Address(space, *plain(self.object), key.session)  # by the plain name sessions are kept

    def sees(self, live: LiveSession) -> bool:
        key = key_of(live.address)
        if key.scope == "shared" and is_own(self.object):
            return False
        owner = {"private": self.uid, "shared": 0, "temp": self.number}[key.scope]
        return live.object_key == plain(self.object) and key.owner == owner


def key_of(address: Address) -> SessionKey:
    where, _, owner = address.space.folder.partition("/")
    scope: Scope = "private" if where == "home" else "shared" if where == "shared" else "temp"
    return SessionKey(scope, 0 if scope == "shared" else int(owner), address.session)
