"""How a machine joins: a token that is used once, and whoever answers it.

    text = Invitation(...).text                 printed once, by the machine that began the team
    member = await accept(text, name)           on the machine that joins
    Issuer(places, client, member).hear         answers it, in the link of the machine that began the team

A token holds the server's address and the pin of its certificate, the seed of a key, and the team's signature
over that. The key may do nothing but ask for this, and the server refuses it when the token has expired.

Rules: the file of a token is removed before its machine is made, so that it is used once. A name that was
given stays given. The new machine makes its own key, and nobody else sees it.
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.state import whole_files
from cortexfs.team import keys, messages, subjects
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import MachineRecord, Member, TeamPlaces, written

PREFIX = "ctx1-"
LIFE_SECONDS = 3600
ANSWER_SECONDS = 10.0
_MAX_TOKEN = 4096

log = logging.getLogger("cortexfs")


class _Content(msgspec.Struct, frozen=True, array_like=True):
    servers: list[str]
    pin: bytes
    seed: bytes
    account: bytes
    issued: int
    expires: int
    signature: bytes


class _Wish(msgspec.Struct, frozen=True):
    machine: str
    public: str


class _Reply(msgspec.Struct, frozen=True):
    problem: str = ""
    code: str = ""
    team: str = ""
    servers: list[str] = []
    token: str = ""
    authority: str = ""


def _claims(account: str, key: keys.Key, issued: int, expires: int) -> keys.Claims:
    publish, subscribe = [subjects.join(key.public)], [subjects.joined(key.public)]
    return keys.user_claims(account, key.public, "a machine that joins", publish, subscribe, issued, expires)


class Invitation(NamedTuple):
    """A token, from either side."""

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
        text = base64.urlsafe_b64encode(msgspec.msgpack.encode(content)).rstrip(b"=").decode()
        return cls(servers, pin, key, account.public, claims.with_signature(signature), PREFIX + text)

    @classmethod
    def read(cls, text: str) -> Invitation:
        body = text.strip().removeprefix(PREFIX)
        try:
            if not text.strip().startswith(PREFIX) or len(text) > _MAX_TOKEN:
                raise ValueError
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            content = msgspec.msgpack.decode(data, type=_Content)
            key = keys.Key(keys.USER, content.seed)
        except (ValueError, binascii.Error, msgspec.MsgspecError):
            raise Fault(
                "EINVAL", "this is no token of a team, or a part of it is missing; copy it whole"
            ) from None
        if content.expires < time.time():
            raise Fault(
                "EACCES", "the token has expired; ctx team init prints another, where the team was begun"
            )
        account = keys.public_text(keys.ACCOUNT, content.account)
        claims = _claims(account, key, content.issued, content.expires)
        token = claims.with_signature(content.signature)
        return cls(content.servers, content.pin, key, account, token, text)


async def accept(invitation: Invitation, machine: str) -> Member:
    """Ask for a part in the team; the member that this machine is then."""
    key = keys.Key.new(keys.USER)
    account = Account(invitation.key, invitation.token, pin=invitation.pin)
    client = Client(f"{machine} joins", invitation.servers, account, "")
    answer: list[bytes] = []
    came = trio.Event()

    def heard(delivery: Delivery) -> None:
        answer.append(delivery.data)
        came.set()

    client.subscribe(subjects.joined(invitation.key.public), heard)
    wish = msgspec.json.encode(_Wish(machine, key.public))
    with trio.move_on_after(ANSWER_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await client.connected.wait()
            client.publish(subjects.join(invitation.key.public), wish)
            await came.wait()
            nursery.cancel_scope.cancel()
    if not answer:
        where = ", ".join(invitation.servers)
        why = client.problem or "nobody there answers: the machine that began the team has to be mounted"
        raise Fault("EHOSTDOWN", f"the team at {where} cannot be joined: {why}")
    try:
        said = msgspec.json.decode(answer[0], type=_Reply)
    except msgspec.MsgspecError:
        raise Fault("EPROTO", "the team's answer is none") from None
    if said.problem:
        raise Fault(said.code or "EACCES", said.problem)
    told = keys.machine_of(said.token, invitation.account)
    if (told.name, told.public) != (machine, key.public_raw):
        raise Fault("EPROTO", "the team's answer is about another machine")
    return Member(said.team, machine, said.servers, invitation.account, key.seed, said.token, said.authority)


def machine_token(account: keys.Key, machine: str, public: str, *, is_first: bool = False) -> str:
    """The JWT of a machine: what it may say and hear."""
    said = subjects.said_by(machine) + (subjects.SAID_BY_FIRST if is_first else [])
    heard = subjects.heard_by(machine) + (subjects.HEARD_BY_FIRST if is_first else [])
    return keys.user_claims(account.public, public, machine, said, heard, int(time.time())).signed(account)


class Issuer:
    """Answers machines that join, where the team's keys are."""

    def __init__(self, places: TeamPlaces, client: Client, member: Member) -> None:
        self._places = places
        self._client = client
        self._member = member

    def hear(self, delivery: Delivery) -> None:
        public = delivery.subject.rpartition(".")[2]
        try:
            reply = self._joined(public, delivery.data)
        except Fault as fault:
            reply = _Reply(problem=fault.message, code=fault.code)
        except OSError as problem:
            reply = _Reply(problem=f"the team's machine cannot keep it: {problem.strerror}", code="EIO")
        self._client.publish(subjects.joined(public), msgspec.json.encode(reply))

    def _joined(self, public: str, data: bytes) -> _Reply:
        keys.public_raw(keys.USER, public)  # a name of a file, which is nothing else
        try:
            wish = msgspec.json.decode(data, type=_Wish)
        except msgspec.MsgspecError:
            raise Fault("EPROTO", "this is no request to join") from None
        messages.check_machine(wish.machine)
        keys.public_raw(keys.USER, wish.public)
        if (self._places.machines / wish.machine).exists():
            raise Fault(
                "EEXIST", f"there is a machine {wish.machine} in the team already; take another --name"
            )
        if not used(self._places.tokens, public):
            raise Fault("EACCES", "the token was used before; ctx team init prints another")
        account = keys.Key.of_seed(self._places.read_secrets().account)
        token = machine_token(account, wish.machine, wish.public)
        written(self._places.machines / wish.machine, MachineRecord(wish.public, int(time.time())))
        log.info("the machine %s has joined the team", wish.machine)
        member = self._member
        return _Reply(team=member.team, servers=member.servers, token=token, authority=member.authority)


def keep(folder: Path, invitation: Invitation) -> None:
    """Have a token be known, until it is used."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written(folder / invitation.key.public, {"made": int(time.time())})


def used(folder: Path, public: str) -> bool:
    """Use a token up; returns False where there is none."""
    try:
        (folder / public).unlink()
    except FileNotFoundError:
        return False
    whole_files.sync(folder)
    return True
