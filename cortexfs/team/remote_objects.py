"""The daemon's side of a team: its link, and the objects of other machines as hosts and rows of the registry.

    remote = RemoteObjects(starter, pairs, state, changed)
    await remote.run()                  for ever; nothing is started where the machine is in no team
    remote.objects                      for the registry
    pool.remote = remote.host           calls of them

Rules: the link reads untrusted input, so its messages are judged like a plugin's descriptors. An object's
name has `+` and its machine's name. An object whose machine is away stays, and its status shows it. Nothing
here imports packages that only members of a team have.
This file must never know how machines talk to each other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.core import hostcalls, starts
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Descriptor, Effect, Identity, ModelFacts, Plugin
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.registry import Key, Object
from cortexfs.core.safe_text import one_line
from cortexfs.peers import safe_sockets
from cortexfs.peers.streams import receive
from cortexfs.plugins import described
from cortexfs.pool.host import Host, Pairs
from cortexfs.pool.starter import Child, Starter
from cortexfs.team import messages
from cortexfs.team.messages import CallOpening, FromLink, LinkState, MachineState, ObjectGone, RemoteObject
from cortexfs.team.places import TeamPlaces

ORIGIN = "machine:"
RETRY_SECONDS = 1.0
SETTLE_SECONDS = 0.05  # changes within this time are shown together
_PRINTED = 64 << 10
MAX_ABILITIES = 64  # of an agent's model
# Input for another machine leaves this one, whatever effects that machine declares.
LEAVES = Effect("network_request", "partially_reversible", "on_risk", "not_supported")

log = logging.getLogger("cortexfs")

_pack = msgspec.msgpack.Encoder().encode
_heard: msgspec.msgpack.Decoder[FromLink] = msgspec.msgpack.Decoder(FromLink)


class RemoteHost(Host):
    """The link, as the host of one call: it gets the caller and the object."""

    def __init__(self, link: LinkProcess, key: tuple[Plugin, Identity], pairs: Pairs) -> None:
        super().__init__(0, key, link.control, lambda number: True, pairs, -1)
        plugin, who = key
        machine, class_, name = plugin.target.split(" ")
        opening = CallOpening(machine, class_, name, who.uid, who.label, who.depth)
        self.packet = _pack(opening)
        self.is_enclosed = True  # no directory of this machine exists there
        self.retired = True  # it is a host of one call
        self.pid = link.child.pid
        self.calls = 1
        self.exited = link.child.ended
        self.ready.set()

    def end(self) -> None:
        """Do nothing: the link goes on."""

    def kill(self) -> None:
        """Do nothing: the link goes on."""


class LinkProcess(NamedTuple):
    """The process of the link."""

    child: Child
    control: socket.socket

    async def receive(self) -> FromLink | None:
        try:
            data = await receive(self.control)
            return _heard.decode(data) if data else None
        except ConnectionError:
            return None
        except UNREADABLE as error:
            log.error("the link to the team has sent an invalid message: %s", error)
            return None

    def close(self) -> None:
        self.control.close()
        self.child.kill()


class RemoteObjects:
    def __init__(
        self,
        starter: Starter,
        pairs: Pairs,
        places: TeamPlaces,
        changed: Callable[[], Awaitable[None]],
        sessions: Callable[[socket.socket], Awaitable[None]],
    ) -> None:
        self._starter = starter
        self._pairs = pairs
        self._places = places
        self._changed = changed
        self._sessions = sessions  # works with each link while it lasts
        self._link: LinkProcess | None = None
        self._told: dict[Key, tuple[RemoteObject, float]] = {}  # with the time since which each is there
        self._live: set[str] = set()
        self._news = trio.Event()
        self._asked = trio.Event()
        self.problem = ""

    def again(self) -> None:
        """Note that the configuration was read again: the machine may have joined or left a team."""
        self._asked.set()

    @property
    def objects(self) -> dict[Key, Object]:
        """Returns the exports of other machines, as rows of the registry."""
        found = {}
        for key, (said, since) in self._told.items():
            try:
                found[key] = self._object(key, said, since)
            except Fault as fault:
                log.info("%s of the machine %s is ignored: %s", said.name, said.machine, fault.message)
        return found

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show)
            while True:
                while not self._places.is_joined:
                    self._asked = trio.Event()
                    await self._asked.wait()
                try:
                    await self._linked()
                except OSError as problem:
                    self.problem = f"the link to the team cannot be started: {problem.strerror}"
                    log.error("%s", self.problem)
                self._live.clear()
                if not self._places.is_joined:
                    self._told.clear()
                self._news.set()
                await trio.sleep(RETRY_SECONDS)

    def host(self, plugin: Plugin, identity: Identity) -> Host:
        """Returns a host for one call. Raises EHOSTDOWN if there is none."""
        machine = plugin.target.partition(" ")[0]
        if self._link is None:
            raise Fault("EHOSTDOWN", self.problem or "the link to the team is being started; try again")
        if machine not in self._live:
            raise Fault("EHOSTDOWN", f"{_away(machine)}; see: ctx team status")
        host = RemoteHost(self._link, (plugin, identity), self._pairs)
        if host.is_stopped:
            raise Fault("EHOSTDOWN", "the link to the team is stopped; see: ctx team status")
        return host

    async def _linked(self) -> None:
        """Run the link once, from its start to its end."""
        child, (control, printed) = await self._starter.start(starts.TEAM)
        link = self._link = LinkProcess(child, socket.socket(fileno=control))
        link.control.setblocking(False)
        safe_sockets.refuse_rights(link.control)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._print, printed)
                nursery.start_soon(self._until_left, link)
                nursery.start_soon(self._sessions, link.control)
                while (said := await link.receive()) is not None:
                    self._hear(said)
                nursery.cancel_scope.cancel()
        finally:
            self._link = None
            link.close()
            os.close(printed)
        self.problem = self.problem or "the link to the team has ended; it is started again"
        log.warning("%s", self.problem)

    async def _until_left(self, link: LinkProcess) -> None:
        """End the link when the machine has left its team."""
        while self._places.is_joined:
            self._asked = trio.Event()
            await self._asked.wait()
        self.problem = "this machine has left its team"
        link.control.shutdown(socket.SHUT_RDWR)

    async def _print(self, printed: int) -> None:
        """Write the link's standard error to the daemon's log."""
        while True:
            await trio.lowlevel.wait_readable(printed)
            said = os.read(printed, _PRINTED)
            if not said:
                return
            for line in said.decode(errors="replace").splitlines():
                log.info("team: %s", one_line(line))

    def _hear(self, said: FromLink) -> None:
        """Take in a message of the link. An object with an invalid name is ignored, as it is never shown."""
        with contextlib.suppress(Fault):
            self._take(said)
            self._news.set()

    def _take(self, said: FromLink) -> None:
        match said:
            case RemoteObject(machine=machine, class_=class_, name=name):
                key = (class_, messages.shown_name(class_, name, machine))
                if class_ not in messages.CLASSES:
                    return
                known = self._told.get(key)
                if known or len(self._told) < messages.MAX_OBJECTS:
                    self._told[key] = said, known[1] if known else time.time()
            case ObjectGone(machine=machine, class_=class_, name=name):
                self._told.pop((class_, messages.shown_name(class_, name, machine)), None)
            case MachineState(machine=machine, is_live=is_live):
                (self._live.add if is_live else self._live.discard)(machine)
            case LinkState(problem=problem):
                self.problem = problem

    async def _show(self) -> None:
        """Have the daemon take over changes, those of a moment together."""
        while True:
            await self._news.wait()
            await trio.sleep(SETTLE_SECONDS)
            self._news = trio.Event()
            await self._changed()

    def _object(self, key: Key, said: RemoteObject, since: float) -> Object:
        class_, name = key
        origin = f"{ORIGIN}{said.machine}"
        plugin = Plugin(origin, "", hostcalls.TEAM, f"{said.machine} {said.class_} {said.name}")
        try:
            schema = msgspec.json.decode(said.schema, type=dict)
        except UNREADABLE:
            raise Fault("EPROTO", "its schema is not a JSON object") from None
        limit = said.extra.get("limit", "")
        facts = ModelFacts(
            tuple(said.extra.get("cap", "").split()),
            int(limit) if limit.isdecimal() and len(limit) < 10 else None,
        )
        seconds = None if said.timeout is None else round(min(max(1.0, said.timeout), 1e6))
        told = Descriptor(
            name,
            said.description,
            schema,
            seconds,
            replace(said.capabilities, effects=(*said.capabilities.effects, LEAVES)),
            facts if class_ == "model" else None,
            dry_run_flag=said.dry_run_flag,
        )
        if class_ == "agent":
            made = _agent(plugin, since, described.judged(told), said.extra.get("cap", ""))
        else:
            made = described.object_of(plugin, origin, since, described.judged(told))
        if made.plugin is None or said.machine in self._live:
            return made
        return replace(made, status=f"broken: {_away(said.machine)}")


def _away(machine: str) -> str:
    return "the pool's machines are all away" if machine == messages.ANY else f"the machine {machine} is away"


def _agent(plugin: Plugin, since: float, told: Descriptor, cap: str) -> Object:
    """Returns an agent. Its powers, tools and sessions are its machine's. Raises a Fault if it is invalid."""
    if told.fault:
        raise Fault("EPROTO", told.fault)
    abilities = [word for word in cap.split() if word.isascii() and word.isidentifier()]
    return Object(
        class_="agent",
        name=told.name,
        description=told.description,
        capabilities=told.capabilities,
        plugin=plugin,
        origin=plugin.name,
        registered=since,
        extra={"cap": "\n".join(abilities[:MAX_ABILITIES])},
    )
