"""The directory of a team: its machines and their exports, from the stream of that name.

Main path: on each connection `load` reads the contents of the stream, and `hear` each later entry. `renew`
reads entries that were not heard.
Rules: a machine's key is in its token, which the team's key has signed. All other entries of a machine are
signed by that machine, and an entry older than the known one is ignored. The facts are signed by the team's
key, and older facts than the known ones are never believed, even after a restart. So a removed machine stays
removed and shows nothing, whatever the directory can be made to deliver. An entry that breaks a rule is
ignored, with a line in the log. The number and size of entries is bounded.
This file must never know which machines are present.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.team import joining, keys, messages, server, subjects
from cortexfs.team.messages import MAX_ENTRY, MAX_OBJECTS, ObjectGone, RemoteObject
from cortexfs.team.nats_client import Client, batch, sequence_of
from cortexfs.team.nats_wire import Delivery, token
from cortexfs.team.places import Member, TeamFacts, TeamPlaces, written

FACTS = ("team", "facts")  # class and name of the entry with the facts of the team
TOKEN = ("machine", "token")  # of the entry with a machine's token
INCARNATION = ("machine", "incarnation")  # and of that with the random bytes of its link's present life
COPIED_SECONDS = 10.0  # after which a copy that was not heard again is forgotten; each answers the other
_BATCH = 512
_FIRST = [".".join(each) for each in (FACTS, TOKEN, INCARNATION)]  # the order in which they are read

log = logging.getLogger("cortexfs")

_objects = msgspec.msgpack.Decoder(RemoteObject)
_facts = msgspec.msgpack.Decoder(TeamFacts)


class Directory:
    """Its attributes are the entries by kind, and the functions that are told of changes."""

    def __init__(
        self, places: TeamPlaces, member: Member, facts_changed: Callable[[TeamFacts], None],
        changed: Callable[[RemoteObject | ObjectGone], None],
    ) -> None:  # fmt: skip
        self._places = places
        self._account = member.account
        self._machine = member.machine
        self._seed = member.seed
        self._facts_changed = facts_changed
        self._changed = changed
        self.machines: dict[str, keys.MachineToken] = {}  # this object is never replaced, as others hold it
        self.facts = places.read_facts()
        self._incarnations: dict[str, bytes] = {}
        self._stamps: dict[str, int] = {}
        self.objects: dict[str, RemoteObject] = {}  # by subject, of all machines
        self.own: dict[str, bytes] = {}  # this machine's entries, by subject
        self.former: set[str] = set()  # subjects of objects that an earlier link of this machine has entered
        self._next = 1  # the number of the first entry in the stream that was not read
        self._copied = -math.inf  # the time at which a copy of this machine was heard
        # Called when another machine has changed an entry of this one.
        self.disturbed: Callable[[], None] = lambda: None

    def key_of(self, machine: str) -> bytes:
        found = self.machines.get(machine)
        if found is None:
            raise Fault("EPROTO", f"there is no machine {machine} in the team")
        return found.public

    async def load(self, client: Client) -> None:
        """Read all that the stream holds."""
        before = {*self.objects}
        found = await self._read(client, 1)
        # The others are of a machine that was removed meanwhile.
        for subject in before - found:
            self._drop(subject)

    async def renew(self, client: Client) -> None:
        """Read the entries since the last reading, as some may not have been heard. A message between two
        servers may be lost, and a server that has just started may have read out too little."""
        await self._read(client, self._next)

    async def _read(self, client: Client, first: int) -> set[str]:
        """Take in the entries from this number on, first the machines. Returns their subjects."""
        self._next, entries = first, list[Delivery]()
        while True:
            request = {"seq": first, "batch": _BATCH, "next_by_subj": subjects.ENTRIES}
            page = await batch(client, subjects.DIRECT, request)
            entries += page
            if not page or len(entries) > 2 * MAX_OBJECTS:
                break
            self._next = first = sequence_of(page[-1]) + 1
        for entry in sorted(entries, key=lambda each: _place(each.subject.split(".", 3)[-1])):
            try:
                self.hear(entry)
            except Fault as fault:
                log.info("%s in the directory of the team is ignored: %s", entry.subject, fault.message)
        return {entry.subject for entry in entries}

    def incarnation_of(self, machine: str) -> bytes:
        """Returns the incarnation that a call to this machine carries, so that no call is taken twice."""
        return self._incarnations.get(machine, b"")

    def _drop(self, subject: str) -> None:
        if object_ := self.objects.pop(subject, None):
            self._changed(ObjectGone(object_.machine, object_.class_, object_.name))

    def hear(self, delivery: Delivery) -> None:
        """Take in one entry."""
        subject = delivery.subject
        words = subject.split(".")
        if len(words) != 5 or len(delivery.data) > MAX_ENTRY + 256:
            raise Fault("EPROTO", "its subject is not valid, or it is too long")
        machine, class_, name = words[2:]
        if machine == self._machine and delivery.data != self.own.get(subject):
            self._recall(subject, delivery.data, is_incarnation=(class_, name) == INCARNATION)
            self.disturbed()
            return
        if (class_, name) == FACTS:
            self._learn(delivery)
            return
        if (class_, name) == TOKEN:
            self._meet(machine, delivery.data)
            return
        data = keys.opened(self.key_of(machine), subject, delivery.data)
        stamp = keys.stamp_of(delivery.data)
        if stamp < self._stamps.get(subject, 0):
            raise Fault("EPROTO", "it is older than what is known")
        is_full = len(self._stamps) >= MAX_OBJECTS and (class_, name) != INCARNATION  # calls need it
        if subject not in self._stamps and is_full:
            raise Fault("EAGAIN", f"the directory has {MAX_OBJECTS} objects, which is the limit")
        self._stamps[subject] = stamp
        if (class_, name) == INCARNATION:
            self._incarnations[machine] = data
            return
        if not data:
            self._drop(subject)
            return
        object_ = _checked(data, machine, class_, name)
        if self.objects.get(subject) != object_:
            self.objects[subject] = object_
            self._changed(object_)

    def _recall(self, subject: str, said: bytes, *, is_incarnation: bool) -> None:
        """Remember the time of an entry by an earlier link of this machine, perhaps by a wrong clock. A later
        link is that of a copy: two machines with one key take each other's calls."""
        with contextlib.suppress(Fault):
            data = keys.opened(keys.Key.of_seed(self._seed).public_raw, subject, said)
            self._stamps[subject] = max(keys.stamp_of(said), self._stamps.get(subject, 0))
            own = self.own.get(subject)
            if is_incarnation and own and keys.stamp_of(said) > keys.stamp_of(own):
                self._copied = time.monotonic()
            elif data and not is_incarnation:
                self.former.add(subject)

    @property
    def problem(self) -> str:
        if time.monotonic() > self._copied + COPIED_SECONDS:
            return ""
        mend = "on the copy, run ctx team leave, and join with a new token and another --name"
        return f"two machines are {self._machine}, as one's state was copied: {mend}"

    def next_time(self, subject: str) -> float:
        """Returns the time for this machine's next entry: others ignore an older one than they know."""
        return max(time.time(), self._stamps.get(subject, 0) / 1000 + 0.002)

    def _learn(self, delivery: Delivery) -> None:
        """Take in the facts. Forget the machines that were removed, and their objects."""
        data = keys.opened(keys.public_raw(keys.ACCOUNT, self._account), delivery.subject, delivery.data)
        stamp = keys.stamp_of(delivery.data)
        if stamp < self.facts.stamp:
            raise Fault("EPROTO", "it is older than what is known")
        if stamp > self.facts.stamp:
            facts = messages.decoded(_facts, data, "the entry is not valid")
            for each in facts.servers:  # the servers go into the configuration of the server here
                messages.check_machine(each.machine)
                server.check_words(each.route, each.pin, *map(joining.check_address, each.addresses))
            # The machine with the team's keys may have forgotten some, by an old backup.
            removed = list(dict.fromkeys([*self.facts.removed, *facts.removed]))
            self.facts = replace(facts, stamp=stamp, removed=removed)
            try:
                written(self._places.facts, self.facts)
            except OSError as problem:  # a full disk, for example; the team goes on
                log.warning("the facts of the team cannot be saved: %s", problem)
            self._facts_changed(self.facts)
        gone = {*self.facts.removed} & {*self.machines}
        for machine in gone:
            del self.machines[machine]
        for subject in [subject for subject, object_ in self.objects.items() if object_.machine in gone]:
            self._drop(subject)

    def _meet(self, machine: str, data: bytes) -> None:
        record = keys.machine_of(data.decode("ascii", "replace"), self._account)
        if record.name != machine:
            raise Fault("EPROTO", f"the token is that of {record.name}")
        if machine in self.facts.removed:
            raise Fault("EPROTO", "it has been removed from the team")
        known = self.machines.get(machine)
        if known is None or record.issued >= known.issued:
            self.machines[machine] = record


def _checked(data: bytes, machine: str, class_: str, name: str) -> RemoteObject:
    object_ = messages.decoded(_objects, data, "the entry is not valid")
    is_its = (object_.machine, object_.class_, token(object_.name)) == (machine, class_, name)
    if not is_its or class_ not in messages.CLASSES:
        raise Fault("EPROTO", "its subject is that of another object")
    messages.shown_name(class_, object_.name, machine)
    return object_


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)
