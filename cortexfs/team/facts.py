"""The facts of a team on each of its machines: its servers, and the machines that are no members any more.

Rules: the team's key has signed them, and none are believed that are older than those known before, also not
after a restart. So who was removed stays that, whatever the directory can be made to say.
This file must never know where they come from.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.team import joining, keys, messages, server
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import TeamFacts, TeamPlaces, written

FACTS = ("team", "facts")  # class and name of the entry with them

_facts = msgspec.msgpack.Decoder(TeamFacts)


class Facts:
    def __init__(self, places: TeamPlaces, account: str, changed: Callable[[TeamFacts], None]) -> None:
        self._places = places
        self._public = keys.public_raw(keys.ACCOUNT, account)
        self._changed = changed
        self.now = places.read_facts()

    def hear(self, delivery: Delivery) -> None:
        data = keys.opened(self._public, delivery.subject, delivery.data, fresh=False)
        stamp = keys.stamp_of(delivery.data)
        if stamp < self.now.stamp:
            raise Fault("EPROTO", "it is older than what is known")
        if stamp == self.now.stamp:
            return
        try:
            said = _facts.decode(data)
        except UNREADABLE as error:
            raise Fault("EPROTO", f"it is none: {error}") from None
        for each in said.servers:  # they go into the configuration of the server here
            messages.check_machine(each.machine)
            server.check_words(each.route, each.pin, *map(joining.check_address, each.addresses))
        self.now = replace(said, stamp=stamp)
        written(self._places.facts, self.now)
        self._changed(self.now)
