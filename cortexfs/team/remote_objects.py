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
from cortexfs.core.names import REMOTE
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

RETRY_SECONDS = 1.0
SETTLE_SECONDS = 0.05  # changes within this time are shown together
_PRINTED = 64 << 10
MAX_ABILITIES = 64  # of an agent's model
# Input for another machine leaves this one, whatever effects that machine declares.
LEAVES = Effect("network_request", "partially_reversible", "on_risk", "not_supported")

log = logging.getLogger("cortexfs")

_pack = msgspec.msgpack.Encoder().encode
_messages: msgspec.msgpack.Decoder[FromLink] = msgspec.msgpack.Decoder(FromLink)


class RemoteHost(Host):
    """The link, as the host of one call: it gets the caller and the object."""

    def __init__(self, link: LinkProcess, key: tuple[Plugin, Identity], pairs: Pairs) -> None:
        super().__init__(0, key, link.control, lambda number: True, pairs, -1)
        plugin, identity = key
        machine, class_, name = plugin.target.split(" ")
        opening = CallOpening(machine, class_, name, identity.uid, identity.label, identity.depth)
        self.packet = _pack(opening)
        self.is_enclosed = True  # no directory of this machine exists there
        self.retired = True  # it is a host of one call
        self.pid = link.child.pid
        self.calls = 1
        self.exited = link.child.ended
        self.ready.set()

    def end_of_call(self) -> Fault:
        return Fault("EHOSTDOWN", "the link to the team has ended during the call")

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
            return _messages.decode(data) if data else None
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
        self._entries: dict[Key, tuple[RemoteObject, float]] = {}  # with the time since which each is there
        self._live: set[str] = set()
        self._news = trio.Event()
        self._reload = trio.Event()
        self.problem = ""

    def again(self) -> None:
        """Note that the configuration was read again: the machine may have joined or left a team."""
        self._reload.set()

    @property
    def objects(self) -> dict[Key, Object]:
        """Returns the exports of other machines, as rows of the registry."""
        objects = {}
        for key, (remote, since) in self._entries.items():
            try:
                objects[key] = self._object(key, remote, since)
            except Fault as fault:
                log.info("%s of the machine %s is ignored: %s", remote.name, remote.machine, fault.message)
        return objects

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show)
            while True:
                while not self._places.is_joined:
                    self._reload = trio.Event()
                    await self._reload.wait()
                try:
                    await self._linked()
                except OSError as problem:
                    self.problem = f"the link to the team cannot be started: {problem.strerror}"
                    log.error("%s", self.problem)
                self._live.clear()
                if not self._places.is_joined:
                    self._entries.clear()
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
                while (message := await link.receive()) is not None:
                    self._hear(message)
                nursery.cancel_scope.cancel()
        finally:
            self._link = None
            link.close()
            os.close(printed)
        self.problem = self.problem or "the link to the team has ended; it is started again"
        log.warning("%s", self.problem)

    async def _until_left(self, link: LinkProcess) -> None:
        """End the link when the machine has left its team, or the team's server has moved."""
        member = self._places.member.read_bytes()
        while self._places.is_joined and self._places.member.read_bytes() == member:
            self._reload = trio.Event()
            await self._reload.wait()
        self.problem = "" if self._places.is_joined else "this machine has left its team"
        link.control.shutdown(socket.SHUT_RDWR)

    async def _print(self, printed: int) -> None:
        """Write the link's standard error to the daemon's log."""
        while True:
            await trio.lowlevel.wait_readable(printed)
            data = os.read(printed, _PRINTED)
            if not data:
                return
            for line in data.decode(errors="replace").splitlines():
                log.info("team: %s", one_line(line))

    def _hear(self, message: FromLink) -> None:
        """Take in a message of the link. An object with an invalid name is ignored, as it is never shown."""
        with contextlib.suppress(Fault):
            self._take(message)
            self._news.set()

    def _take(self, message: FromLink) -> None:
        match message:
            case RemoteObject(machine=machine, class_=class_, name=name):
                key = (class_, messages.shown_name(class_, name, machine))
                if class_ not in messages.CLASSES:
                    return
                entry = self._entries.get(key)
                if entry or len(self._entries) < messages.MAX_OBJECTS:
                    self._entries[key] = message, entry[1] if entry else time.time()
            case ObjectGone(machine=machine, class_=class_, name=name):
                self._entries.pop((class_, messages.shown_name(class_, name, machine)), None)
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

    def _object(self, key: Key, remote: RemoteObject, since: float) -> Object:
        class_, name = key
        origin = f"{REMOTE}{remote.machine}"
        plugin = Plugin(origin, "", hostcalls.TEAM, f"{remote.machine} {remote.class_} {remote.name}")
        try:
            schema = msgspec.json.decode(remote.schema, type=dict)
        except UNREADABLE:
            raise Fault("EPROTO", "its schema is not a JSON object") from None
        limit = remote.extra.get("limit", "")
        facts = ModelFacts(
            tuple(remote.extra.get("cap", "").split()),
            int(limit) if limit.isdecimal() and len(limit) < 10 else None,
        )
        seconds = None if remote.timeout is None else round(min(max(1.0, remote.timeout), 1e6))
        descriptor = Descriptor(
            name,
            remote.description,
            schema,
            seconds,
            replace(remote.capabilities, effects=(*remote.capabilities.effects, LEAVES)),
            facts if class_ == "model" else None,
            dry_run_flag=remote.dry_run_flag,
        )
        if class_ == "agent":
            object_ = _agent(plugin, since, described.judged(descriptor), remote.extra.get("cap", ""))
        else:
            object_ = described.object_of(plugin, origin, since, described.judged(descriptor))
        if object_.plugin is None or remote.machine in self._live:
            return object_
        return replace(object_, status=f"broken: {_away(remote.machine)}")


def _away(machine: str) -> str:
    return "the pool's machines are all away" if machine == messages.ANY else f"the machine {machine} is away"


def _agent(plugin: Plugin, since: float, descriptor: Descriptor, cap: str) -> Object:
    """Returns an agent. Its powers, tools and sessions are its machine's. Raises a Fault if it is invalid."""
    if descriptor.fault:
        raise Fault("EPROTO", descriptor.fault)
    abilities = [word for word in cap.split() if word.isascii() and word.isidentifier()]
    return Object(
        class_="agent",
        name=descriptor.name,
        description=descriptor.description,
        capabilities=descriptor.capabilities,
        plugin=plugin,
        origin=plugin.name,
        registered=since,
        extra={"cap": "\n".join(abilities[:MAX_ABILITIES])},
    )
