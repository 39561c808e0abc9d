"""The additional work of the machine that began the team, which has the team's keys. It runs in its link.

    founder = Founder(places, client, member, directory)
    await founder.begin()       with each connection: the stream of the directory is there, and all is said
    await founder.watch()       and again when a machine has joined as a server, or was removed

Rules: the facts are made from the files of machines. The servers learn of removed machines from the account's
token, whose revocations they pass on to each other and keep.
This file must never know what machines do for each other.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.team import keys, messages, server, subjects
from cortexfs.team.directory import FACTS, Directory
from cortexfs.team.line import until_one_ends
from cortexfs.team.nats_client import ANSWER_SECONDS, Account, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import MachineRecord, Member, TeamFacts, TeamPlaces, written

LOOK_SECONDS = 0.5
_CLAIMS = "$SYS.REQ.CLAIMS.UPDATE"
_REMOVE = "$JS.API.SERVER.REMOVE"
_IS_THERE = 10058  # a stream of that name, with other settings


class Founder:
    def __init__(self, places: TeamPlaces, client: Client, member: Member, directory: Directory) -> None:
        self._places = places
        self._client = client
        self._member = member
        self._directory = directory
        self._stamp = 0
        self._recorded: set[str] = set()  # machines that have a file

    async def begin(self) -> None:
        """Publish the facts, and make the streams. Raises a Fault while the servers are not ready."""
        self._stamp = self._places.machines.stat().st_mtime_ns
        records = self._places.read_machines()
        removed = [name for name, record in records.items() if record.removed]
        servers = [record.server for record in records.values() if record.server and not record.removed]
        facts = self._directory.facts
        is_cluster = facts.is_cluster or len(servers) >= server.SERVERS
        account = keys.Key.of_seed(self._places.read_secrets().account)
        subject = subjects.entry(self._member.machine, *FACTS)
        data = msgspec.msgpack.encode(TeamFacts(servers, removed, is_cluster))
        sealed = keys.seal(account, subject, data, max(time.time(), facts.stamp / 1000 + 0.002))
        self._directory.own[subject] = sealed
        self._client.publish(subject, sealed)  # also before there is a stream, which needs these servers
        if is_cluster and not facts.is_cluster:
            await self._client.room(0)
            await trio.sleep(LOOK_SECONDS)  # the server passes it on, before it restarts as a cluster
        self._directory.hear(Delivery(subject, "", "", "", {}, sealed))
        await self._make_streams(server.SERVERS if is_cluster else 1)
        await self._client.stored(subject, sealed)
        if removed:
            await self._tell_servers(records)
        for machine in removed:
            purged = msgspec.json.encode({"filter": f"ctx.dir.{machine}.>"})
            await self._client.request(subjects.PURGE, purged)

    async def watch(self) -> None:
        """Watch the files of machines, for ever. After a failure, the next look tries again."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            with contextlib.suppress(OSError):  # a full disk, for example
                self._record()
            if self._client.is_connected and self._places.machines.stat().st_mtime_ns != self._stamp:
                try:
                    await self.begin()
                except Fault:
                    self._stamp = 0

    def _record(self) -> None:
        """Record the machines that joined after the backup from which this machine came back."""
        for name in {*self._directory.machines} - self._recorded:
            token, path = self._directory.machines[name], self._places.machines / name
            if not path.exists():
                written(path, MachineRecord(keys.public_text(keys.USER, token.public), token.issued))
            self._recorded.add(name)

    async def _make_streams(self, replicas: int) -> None:
        directory = {
            "name": subjects.DIRECTORY, "subjects": ["ctx.dir.*.*.*"], "num_replicas": replicas,
            "storage": "file", "retention": "limits", "discard": "new", "allow_direct": True,
            "max_msgs_per_subject": 1, "max_msgs": 2 * messages.MAX_OBJECTS,
            "max_msg_size": messages.MAX_ENTRY + 1024, "max_bytes": messages.MAX_DIRECTORY,
        }  # fmt: skip
        logs = {
            "name": subjects.LOGS, "subjects": ["ctx.log.*.*.*.*.*"], "num_replicas": replicas,
            "storage": "file", "retention": "limits", "discard": "new", "allow_direct": True,
            "max_msg_size": 2 << 20,
        }  # fmt: skip
        for config in (directory, logs):
            subject = f"$JS.API.STREAM.CREATE.{config['name']}"
            await self._client.stored(subject, msgspec.json.encode(config), _IS_THERE)

    async def _tell_servers(self, records: dict[str, MachineRecord]) -> None:
        """Have the servers refuse the removed machines, and drop removed servers from the cluster."""
        secrets, member = self._places.read_secrets(), self._member
        system, claims = keys.Key.of_seed(secrets.system), server.claims(secrets, self._places.removed())[1]
        key, inbox = keys.Key.new(keys.USER), "_INBOX.founder"
        subjects_ = [_CLAIMS, _REMOVE]
        token = keys.user_claims(
            system.public, key.public, "founder", subjects_, [f"{inbox}.>"], int(time.time())
        )
        proof = Account(key, token.signed(system), member.authority)
        client = Client("founder", self._client.servers, proof, inbox)

        async def tell() -> None:
            with trio.move_on_after(ANSWER_SECONDS):
                await client.connected.wait()
            await client.request(_CLAIMS, claims.encode())
            for machine, record in records.items():
                if record.removed and record.server and self._directory.facts.is_cluster:
                    request = msgspec.json.encode({"peer": machine})
                    await client.request(_REMOVE, request)

        await until_one_ends(tell, client.run)
