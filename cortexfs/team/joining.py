"""How a machine joins: a token that is used once, and the answer to it.

    text = Invitation(...).text                 printed once, by the machine that began the team
    reply = await accept(text, wish)            on the machine that joins
    Issuer(places, client, member).hear         answers it, in the link of the machine that began the team

A token holds the server's address and the pin of its certificate, the seed of a key, and the team's signature
over that. The key may only ask to join, and the server refuses it when the token has expired.

Rules: a token's file is removed before its machine is made, so the token is used once. A name that was given
stays given. The new machine makes its own key, which no other machine sees.
"""

from __future__ import annotations

import logging
import math
import re
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.state import whole_files
from cortexfs.team import certificates, keys, messages, server, subjects
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import (
    MachineRecord,
    Member,
    ServerRecord,
    TeamPlaces,
    TeamSecrets,
    read,
    written,
)

PREFIX = "ctx1-"
LIFE_SECONDS = 3600
ANSWER_SECONDS = 10.0
_MAX_TOKEN = 4096
_MAX_ADDRESSES = 8
LOCAL = ("localhost", "127.0.0.1", "::1")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:]{2,45}\]):([0-9]{1,5})", re.ASCII)

log = logging.getLogger("cortexfs")


class _Content(msgspec.Struct, frozen=True, array_like=True):
    servers: list[str]
    pin: bytes
    seed: bytes
    account: bytes
    issued: int
    expires: int
    signature: bytes


class ServerWish(msgspec.Struct, frozen=True):
    """The wish to be a server too: the addresses that reach it, and the public key of its certificate."""

    addresses: list[str]  # HOST:PORT
    public: str  # PEM


class Wish(msgspec.Struct, frozen=True):
    machine: str
    public: str = ""
    server: ServerWish | None = None


class Reply(msgspec.Struct, frozen=True):
    problem: str = ""
    code: str = ""
    team: str = ""
    servers: list[str] = []
    token: str = ""
    authority: str = ""
    certificate: str = ""  # for a server, with the system account and the claims that it has to trust
    system: str = ""
    claims: list[str] = []


class _Made(msgspec.Struct, frozen=True):
    """The file of an unused token."""

    made: int
    is_server: bool = False


def _claims(account: str, key: keys.Key, issued: int, expires: int) -> keys.Claims:
    publish, subscribe = [subjects.join(key.public)], [subjects.joined(key.public)]
    return keys.user_claims(account, key.public, "a machine that joins", publish, subscribe, issued, expires)


class Invitation(NamedTuple):
    """A token, on either side."""

    servers: list[str]
    pin: bytes
    key: keys.Key
    account: str
    token: str  # the JWT
    text: str

    @classmethod
    def new(
        cls, servers: list[str], pin: bytes, account: keys.Key, seconds: int = LIFE_SECONDS
    ) -> Invitation:
        key, issued = keys.Key.new(keys.USER), int(time.time())
        claims = _claims(account.public, key, issued, issued + seconds)
        signature = claims.signature(account)
        content = _Content(servers, pin, key.raw, account.public_raw, issued, issued + seconds, signature)
        text = PREFIX + keys.unpadded(msgspec.msgpack.encode(content))
        return cls(servers, pin, key, account.public, claims.with_signature(signature), text)

    @classmethod
    def read(cls, text: str) -> Invitation:
        whole = "".join(text.split())  # a message or a terminal may have broken its line
        try:
            if not whole.startswith(PREFIX) or len(whole) > _MAX_TOKEN:
                raise ValueError
            content = msgspec.msgpack.decode(keys.padded(whole.removeprefix(PREFIX)), type=_Content)
            key = keys.Key(keys.USER, content.seed)
            for each in content.servers:
                check_address(each)
        except (ValueError, RecursionError, Fault):
            raise Fault(
                "EINVAL", "this is not a token of a team, or a part of it is missing; copy it whole"
            ) from None
        if content.expires < time.time():
            mend = "make another on the first machine: ctx team init"
            raise Fault("EACCES", f"the token has expired, or a clock is wrong; {mend}")
        account = keys.public_text(keys.ACCOUNT, content.account)
        claims = _claims(account, key, content.issued, content.expires)
        token = claims.with_signature(content.signature)
        return cls(content.servers, content.pin, key, account, token, text)


def check_address(text: str) -> str:
    """Returns HOST:PORT, or raises EINVAL. The port must leave room for the servers' port above it."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[1]) <= 65535 - server.ROUTES:
        raise Fault("EINVAL", f"{text[:80]!r} is not HOST:PORT with a port up to {65535 - server.ROUTES}")
    return text


async def accept(invitation: Invitation, wish: Wish) -> tuple[Member, Reply]:
    """Ask to join the team. Returns the new membership of this machine, and the reply."""
    machine, key = wish.machine, keys.Key.new(keys.USER)
    account = Account(invitation.key, invitation.token, pin=invitation.pin)
    client = Client(f"{machine} joins", invitation.servers, account, "")
    say, answers = trio.open_memory_channel[bytes](math.inf)
    client.subscribe(subjects.joined(invitation.key.public), lambda delivery: say.send_nowait(delivery.data))
    answer = None
    request = msgspec.json.encode(replace(wish, public=key.public))
    with trio.move_on_after(ANSWER_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await client.connected.wait()
            client.publish(subjects.join(invitation.key.public), request)
            answer = await answers.receive()
            nursery.cancel_scope.cancel()
    if answer is None:
        why = client.problem or "the machine that began it does not answer; run ctx mount on that"
        if client.problem and "ctx team init" not in why:
            why += "; run ctx mount there, or let it name another address: ctx team init --address HOST"
        raise Fault("EHOSTDOWN", f"the team cannot be joined: {why}")
    try:
        reply = msgspec.json.decode(answer, type=Reply)
    except UNREADABLE:
        raise Fault("EPROTO", "the team's answer cannot be read; compare the CortexFS versions") from None
    if reply.problem:
        raise Fault(reply.code or "EACCES", reply.problem)
    record = keys.machine_of(reply.token, invitation.account)
    if (record.name, record.public) != (machine, key.public_raw):
        raise Fault("EPROTO", "the team's answer is about another machine")
    check_reply(reply, wish)
    account_ = invitation.account
    return Member(reply.team, machine, reply.servers, account_, key.seed, reply.token, reply.authority), reply


def check_reply(reply: Reply, wish: Wish) -> None:
    """Raises a Fault if a name, address, token or authority in the reply is invalid. They go into files here,
    and a configuration of NATS can make a server of root write to any file."""
    server.check_words(reply.team, *map(check_address, reply.servers))
    certificates.check_authority(reply.authority)
    if wish.server is not None:
        server.check_words(reply.system, *reply.claims)
        if len(reply.claims) != server.CLAIMS:
            raise Fault("EPROTO", "the team's answer lacks the claims that a server needs")


def machine_token(account: keys.Key, machine: str, public: str, *, is_first: bool = False) -> str:
    """Returns the JWT of a machine, with the subjects that it may publish and subscribe to."""
    publish = subjects.said_by(machine) + (subjects.SAID_BY_FIRST if is_first else [])
    subscribe = subjects.heard_by(machine) + (subjects.HEARD_BY_FIRST if is_first else [])
    return keys.user_claims(account.public, public, machine, publish, subscribe, int(time.time())).signed(
        account
    )


class Issuer:
    """Answers machines that join, on the machine with the team's keys."""

    def __init__(self, places: TeamPlaces, client: Client, member: Member) -> None:
        self._places = places
        self._client = client
        self._member = member

    def hear(self, delivery: Delivery) -> None:
        public = delivery.subject.rpartition(".")[2]
        try:
            reply = self._joined(public, delivery.data)
        except Fault as fault:
            reply = Reply(problem=fault.message, code=fault.code)
        except OSError as problem:
            reply = Reply(problem=f"the team's first machine cannot save it: {problem.strerror}", code="EIO")
        self._client.publish(subjects.joined(public), msgspec.json.encode(reply))

    def _joined(self, public: str, data: bytes) -> Reply:
        keys.public_raw(keys.USER, public)  # checked, as it becomes the name of a file
        try:
            wish = msgspec.json.decode(data, type=Wish)
        except UNREADABLE:
            raise Fault("EPROTO", "the request cannot be read; compare the CortexFS versions") from None
        messages.check_machine(wish.machine)
        keys.public_raw(keys.USER, wish.public)
        if (self._places.machines / wish.machine).exists():
            raise Fault("EEXIST", f"the team has a machine {wish.machine} already; choose another --name")
        secrets, member = self._places.read_secrets(), self._member
        account = keys.Key.of_seed(secrets.account)
        record, reply = MachineRecord(wish.public, int(time.time())), Reply()
        if wish.server is not None:
            record, reply = self._server(secrets, wish.machine, wish.server, record)
        use_up(self._places.tokens, public, is_server=wish.server is not None)
        token = machine_token(account, wish.machine, wish.public)
        written(self._places.machines / wish.machine, record)
        log.info("the machine %s has joined the team", wish.machine)
        servers = self._client.servers
        return replace(reply, team=member.team, servers=servers, token=token, authority=member.authority)

    def _server(
        self, secrets: TeamSecrets, machine: str, wish: ServerWish, record: MachineRecord
    ) -> tuple[MachineRecord, Reply]:
        """Returns the record of a new server of the team, and a reply with its certificate."""
        records = self._places.read_machines().values()
        if sum(entry.server is not None and not entry.removed for entry in records) >= server.SERVERS:
            raise Fault("EEXIST", f"the team has {server.SERVERS} servers; join it without --server")
        if not 0 < len(wish.addresses) <= _MAX_ADDRESSES:
            raise Fault("EINVAL", f"a server has 1 to {_MAX_ADDRESSES} addresses")
        hosts = [check_address(each).rpartition(":")[0].strip("[]") for each in wish.addresses]
        ca = certificates.Pem(secrets.authority.encode(), secrets.authority_key.encode())
        certificate = certificates.of_server(ca, machine, [*hosts, *LOCAL], wish.public)
        pin = certificates.key_pin(wish.public)
        server_record = ServerRecord(machine, wish.addresses, server.route(wish.addresses[0]), pin)
        system, claims = (
            keys.Key.of_seed(secrets.system).public,
            server.claims(secrets, self._places.removed()),
        )
        return replace(record, server=server_record), Reply(
            certificate=certificate.decode(), system=system, claims=claims
        )


def keep(folder: Path, invitation: Invitation, *, is_server: bool) -> None:
    """Keep the file of a token until it is used."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written(folder / invitation.key.public, _Made(int(time.time()), is_server))


def use_up(folder: Path, public: str, *, is_server: bool) -> None:
    """Use a token. Raises EACCES if it was used before, or does not allow as much."""
    token = read(folder / public, _Made, "file of a token")
    if token is None:
        raise Fault("EACCES", "the token was used before; make another on the first machine: ctx team init")
    if is_server and not token.is_server:
        raise Fault("EACCES", "the token does not allow --server; make one that does: ctx team init --server")
    (folder / public).unlink()
    whole_files.sync(folder)
