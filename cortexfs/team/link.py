"""The process that joins a daemon to its team: all messages to and from other machines pass through it.

    python -I -m cortexfs.team.link --root ROOT --state DIR --config DIR --daemon PID

Standard input is the channel to the daemon (messages.py). The daemon's starter starts it if there is a
team/member.json, and it ends with the daemon. On a machine that is a server, it starts the server too.

Rules: it reads untrusted input, as the daemon's user. It does not run calls: stand-ins and the mount do. Its
messages to the daemon are bounded. A lost connection ends the calls that went over it, and nothing else.
This file must never know what an object does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import math
import os
import random
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec
import trio

from cortexfs.core import wire
from cortexfs.core.errors import Fault
from cortexfs.linux import syscalls
from cortexfs.peers.ancestry import is_stopped
from cortexfs.peers.prompt import ShortConversations
from cortexfs.peers.streams import send
from cortexfs.team import keys, messages, subjects
from cortexfs.team.directory import Directory
from cortexfs.team.exporting import Exporting
from cortexfs.team.founder import Founder
from cortexfs.team.incoming import Incoming
from cortexfs.team.joining import Issuer
from cortexfs.team.mapping import Mapping
from cortexfs.team.messages import CallOpening, FromLink, LinkState, MachineState
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.outgoing import Outgoing
from cortexfs.team.places import Export, TeamFacts, TeamPlaces, written
from cortexfs.team.pools import Pools
from cortexfs.team.presence import GONE_SECONDS, Presence
from cortexfs.team.server import TeamServer
from cortexfs.team.session_messages import FROM_DAEMON, SessionChannel, SessionOpening
from cortexfs.team.session_stream import SessionStream
from cortexfs.team.standins import StandIns

RETRY_SECONDS = 0.5
RENEW_SECONDS = 3.0  # between two times of status.json, by which commands know that it is true
DIRECTORY_SECONDS = 10.0  # between two looks for entries of the directory that were not heard
LOST = "the connection to the team was lost during the call"
_ASKED = wire.message(messages.ASK)

log = logging.getLogger("cortexfs")

_pack = msgspec.msgpack.Encoder().encode
_openings: msgspec.msgpack.Decoder[CallOpening | SessionOpening] = msgspec.msgpack.Decoder(
    CallOpening | SessionOpening
)


class DaemonChannel:
    """The link's end of the channel to the daemon: calls come from it, and news of objects goes to it."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)  # it would take the room of descriptors
        control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * messages.MAX_PACKET)
        self._control = control
        self._say, self._packets = trio.open_memory_channel[bytes](math.inf)

    def tell(self, message: FromLink) -> None:
        self._say.send_nowait(_pack(message))

    async def send(self) -> None:
        async for packet in self._packets:
            await send(self._control, packet)

    async def receive(self) -> tuple[CallOpening | SessionOpening, socket.socket] | None:
        """Returns the next call, or the stream for sessions; None when the daemon is gone."""
        rights: list[int] = []
        while not rights:  # without a free descriptor here the call is lost, which the daemon notices
            await trio.lowlevel.wait_readable(self._control)
            try:
                data, rights, _ = syscalls.receive(self._control, messages.MAX_PACKET, 1)
            except ConnectionError:
                return None
            if not data:
                return None
        stream = socket.socket(fileno=rights[0])
        stream.setblocking(False)
        return _openings.decode(data), stream


class TeamLink:
    """Joins the parts of the link. Each part is an attribute, as they meet only here."""

    def __init__(
        self, root: str, places: TeamPlaces, daemon: int, control: socket.socket, nursery: trio.Nursery
    ) -> None:
        self.places = places
        self.member = member = places.read_member()
        self.nursery = nursery
        self.prompt = prompt = ShortConversations(nursery)
        self.daemon = DaemonChannel(control)
        me = member.machine
        account = Account(keys.Key.of_seed(member.seed), member.token, member.authority)
        self.client = client = Client(me, member.servers, account, subjects.inbox(me))
        self.mapping = Mapping(places)
        self.standins = StandIns(root, nursery)
        self.directory = Directory(places, member, self._facts_changed, self._object_changed)
        self.presence = Presence(client, self.directory.machines, self._machine_changed)
        self.pools = Pools(self.presence, me, self.daemon.tell)
        self.outgoing = Outgoing(client, self.pools, self.directory)
        self.pools.going = self.outgoing.lines.of
        self.exporting = Exporting(root, self.mapping, client)
        key_of, incarnation = self.directory.key_of, self.exporting.incarnation
        self.incoming = Incoming(client, self.mapping, self.standins, prompt, key_of, incarnation)
        self._problem = ""  # with the team's directory
        self._lines = self.outgoing.lines, self.incoming.lines
        self.presence.calls = lambda: len(self.incoming.lines)
        self.presence.is_stopped = partial(is_stopped, daemon)
        self.server = TeamServer(places, me)
        self.founder = Founder(places, client, member, self.directory) if places.secrets.exists() else None
        self._facts_changed(self.directory.facts)
        self.sessions = SessionStream(client, self.mapping, places.cursor, key_of, self.presence.is_live)
        client.on_connect = self._connected
        client.on_read = self.incoming.begin
        client.subscribe(subjects.ENTRIES, self.directory.hear)
        client.subscribe(subjects.LIVES, self.presence.hear)
        client.subscribe(subjects.calls(me), self.incoming.hear)
        client.subscribe(subjects.runs(me), self._piece)
        if self.founder:
            client.subscribe(subjects.JOINS, Issuer(places, client, member).hear)

    async def run(self) -> None:
        """Run until the daemon is gone."""
        try:
            if self.founder:
                self.nursery.start_soon(self.founder.watch)
            for each in (self.server, self.client, self.presence, self.prompt):
                self.nursery.start_soon(each.run)
            for lines in self._lines:
                self.nursery.start_soon(lines.watch)
            self.nursery.start_soon(self.daemon.send)
            self.nursery.start_soon(self._watch)
            self.nursery.start_soon(self._renew)
            while (call := await self.daemon.receive()) is not None:
                if isinstance(call[0], SessionOpening):
                    channel = SessionChannel(call[1], FROM_DAEMON)
                    self.nursery.start_soon(self.sessions.serve, channel)
                else:
                    self.prompt.begin(self.outgoing.call(call[0], call[1]))
            self.presence.beat(b"gone")
            with trio.move_on_after(0.2):
                await self.client.room(0)
        finally:
            self.standins.end()

    def _piece(self, delivery: Delivery) -> None:
        _, _, _, from_, run = delivery.subject.split(".")
        is_known = any(each.hear(from_, run, delivery) for each in self._lines)
        if not is_known and delivery.data[messages.NUMBER.size :] == _ASKED:
            with contextlib.suppress(Fault):  # the other machine asks again
                self.client.publish(subjects.run(from_, self.member.machine, run), messages.UNKNOWN)

    def _facts_changed(self, facts: TeamFacts) -> None:
        """Use the servers that are known now. This machine tries its own server first."""
        me = self.member.machine
        servers = sorted(facts.servers, key=lambda each: (each.machine != me, random.random()))
        told = [address for each in servers for address in each.addresses]
        # A cluster's servers may be others than those by which this machine joined; an only server may move.
        known = [] if facts.is_cluster else self.member.servers
        self.client.servers = list(dict.fromkeys([*known, *told]))
        self.server.apply(facts)

    def _object_changed(self, change: messages.RemoteObject | messages.ObjectGone) -> None:
        if change.machine != self.member.machine:
            self.daemon.tell(change)
        self.pools.changed(change)

    def _machine_changed(self, machine: str, is_live: bool) -> None:
        self.pools.machine_changed()
        if machine == self.member.machine:
            return
        self.daemon.tell(MachineState(machine, is_live))
        if not is_live:
            self._lose(machine, f"{machine} has ended, or has not reported for {GONE_SECONDS:g} s")

    def _lose(self, machine: str | None, why: str) -> None:
        """End the calls with one machine, or all calls."""
        for lines in self._lines:
            lines.lose(machine, Fault("EHOSTDOWN", why))

    # -- the connection

    def _connected(self) -> None:
        self.nursery.start_soon(self._begin, self.client.connected)

    async def _begin(self, connection: trio.Event) -> None:
        """Prepare each new connection, until there is another."""
        self._lose(None, LOST)
        while self.client.connected is connection and self.client.is_connected:
            try:
                if self.founder:
                    await self.founder.begin()
                await self.directory.load(self.client)
                self.sessions.met.set()
                await self.exporting.introduce(self.directory, self.member.token)
                self.presence.beat()
                self.daemon.tell(LinkState(""))
                self._problem = ""
                await self.exporting.run(self.directory, self.member.token)
            except Fault as fault:
                self._problem = f"the directory of the team cannot be read yet: {fault.message}"
                log.warning("%s", self._problem)
                await trio.sleep(RETRY_SECONDS)

    async def _renew(self) -> None:
        while True:
            await trio.sleep(DIRECTORY_SECONDS)
            if self.client.is_connected:
                with contextlib.suppress(Fault):  # tried again; `_begin` reports a server that cannot answer
                    await self.directory.renew(self.client)

    async def _watch(self) -> None:
        """Keep status.json up to date, and report a connection that is away."""
        was_away, last, problem, end = False, None, "", 0.0
        while True:
            now = {
                "pid": os.getpid(),
                "team": self.member.team,
                "machine": self.member.machine,
                "server": self.client.server if self.client.is_connected else "",
                "problem": self.client.problem,
                "servers": [each.machine for each in self.directory.facts.servers],
                "is_cluster": self.directory.facts.is_cluster,
                "machines": {
                    each: each in self.presence.live
                    for each in sorted({*self.directory.machines, *self.presence.live})
                },
                "exports": {
                    each.object: self.exporting.problems.get(each.object, "") for each in self._exports()
                },
                "problems": [
                    text
                    for text in (
                        self._problem,
                        self.directory.problem,
                        self.exporting.problems.get("exports"),
                    )
                    if text
                ],
            }
            if self.client.problem and not was_away:
                self._away()
            was_away = bool(self.client.problem)
            if now != last or trio.current_time() >= end:
                path, end = self.places.status, trio.current_time() + RENEW_SECONDS
                renew = partial(os.utime, path) if now == last else partial(written, path, now)
                try:
                    await trio.to_thread.run_sync(renew)
                    last, problem = now, ""
                except OSError as error:  # a full disk, for example: it is tried again, and logged once
                    last = None
                    if str(error) != problem:
                        log.warning("the state of the team cannot be saved: %s", problem := str(error))
            await trio.sleep(RETRY_SECONDS)

    def _exports(self) -> list[Export]:
        try:
            return list(self.mapping.exports)
        except Fault:
            return []

    def _away(self) -> None:
        self.daemon.tell(LinkState(self.client.problem))
        self._lose(None, LOST)
        for machine in self.presence.live:
            self.presence.forget(machine)


async def serve(root: str, places: TeamPlaces, daemon: int, control: socket.socket) -> None:
    async with trio.open_nursery() as nursery:
        await TeamLink(root, places, daemon, control, nursery).run()
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="cortexfs.team.link")
    for option in ("--root", "--state", "--config"):
        parser.add_argument(option, required=True)
    parser.add_argument("--daemon", required=True, type=int)
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    os.umask(0o077)
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    places = TeamPlaces(Path(options.state), Path(options.config))
    gc.freeze()
    try:
        trio.run(partial(serve, options.root, places, options.daemon, control))
    except* Fault as faults:
        sys.exit(str(faults.exceptions[0]))


if __name__ == "__main__":
    main()
