"""What a link makes of words that it should not believe, without a server between them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.team import certificates, joining, keys, subjects
from cortexfs.team.directory import TOKEN, Directory
from cortexfs.team.facts import FACTS, Facts
from cortexfs.team.joining import Invitation, Issuer, Reply, ServerWish, Wish, machine_token
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import Member, TeamFacts, TeamPlaces, TeamSecrets, written
from cortexfs.team.presence import QUIET_SECONDS, Presence


def test_a_machine_that_was_removed_is_met_no_more(tmp_path: Path) -> None:
    # also after a restart: another machine can have the server say again what was said before
    account, key = keys.Key.new(keys.ACCOUNT), keys.Key.new(keys.USER)
    places = TeamPlaces(tmp_path, tmp_path)
    places.folder.mkdir()
    met = entry("lost", TOKEN, machine_token(account, "lost", key.public).encode())
    gone, before = (
        entry("box", FACTS, keys.seal(account, subjects.entry("box", *FACTS), said, when))
        for said, when in (
            (msgspec.msgpack.encode(TeamFacts([], ["lost"])), time.time()),
            (msgspec.msgpack.encode(TeamFacts()), time.time() - 60),
        )
    )

    def begun() -> Directory:
        facts = Facts(places, account.public, lambda said: None)
        return Directory(account.public, "laptop", facts, lambda said: None)

    first = begun()
    first.hear(met)
    assert first.key_of("lost") == key.public_raw
    first.hear(gone)
    for directory in (first, begun()):
        for each in (before, met):
            with pytest.raises(Fault, match="EPROTO"):
                directory.hear(each)
        with pytest.raises(Fault, match="EPROTO"):
            directory.key_of("lost")


def entry(machine: str, what: tuple[str, str], data: bytes) -> Delivery:
    return Delivery(subjects.entry(machine, *what), "1", "", "", {}, data)


class Told(Client):
    """A client without a connection, that keeps what is said."""

    def __init__(self) -> None:
        super().__init__("told", [], Account(keys.Key.new(keys.USER), ""), "")
        self.said: list[bytes] = []

    def publish(self, subject: str, data: bytes, *about: Any, **more: Any) -> None:
        self.said.append(data)


def test_who_comes_and_goes_is_followed_at_a_pace() -> None:
    trio.run(_coming_and_going, clock=trio.testing.MockClock(autojump_threshold=0))


async def _coming_and_going() -> None:
    client, moves = Told(), list[tuple[str, bool]]()
    presence = Presence(client, "box", {"laptop"}, lambda machine, there: moves.append((machine, there)))

    def hear(machine: str, said: bytes) -> None:
        presence.hear(Delivery(subjects.live(machine), "1", "", "", {}, said))

    for _ in range(1000):
        hear("laptop", b"0")
        hear("laptop", b"gone")
        hear("stranger", b"0")
    assert (moves, len(client.said)) == ([("laptop", True)], 1)
    await trio.sleep(QUIET_SECONDS)
    hear("laptop", b"gone")
    assert moves[1:] == [("laptop", False)]


def test_a_token_of_a_machine_makes_no_server(tmp_path: Path) -> None:
    # abi.md 14.12
    places, client = TeamPlaces(tmp_path, tmp_path), Told()
    places.server.mkdir(parents=True)
    places.machines.mkdir()
    ca, account = certificates.authority("team"), keys.Key.new(keys.ACCOUNT)
    seeds = (keys.Key.new(keys.OPERATOR).seed, account.seed, keys.Key.new(keys.ACCOUNT).seed)
    written(places.secrets, TeamSecrets(*seeds, ca.certificate.decode(), ca.key.decode()))
    issuer = Issuer(places, client, Member("team", "box", [], account.public, "", "", ""))
    public = certificates.public_of(certificates.new_key())

    def asked(invitation: Invitation, server: ServerWish | None) -> Reply:
        wish = Wish("third", keys.Key.new(keys.USER).public, server)
        subject = subjects.join(invitation.key.public)
        issuer.hear(Delivery(subject, "1", "", "", {}, msgspec.json.encode(wish)))
        return msgspec.json.decode(client.said[-1], type=Reply)

    plain, good = (Invitation.new([], b"", account) for _ in range(2))
    joining.keep(places.tokens, plain, is_server=False)
    joining.keep(places.tokens, good, is_server=True)
    wish = ServerWish(["10.0.0.3:4222"], public)
    assert "is for no server" in asked(plain, wish).problem
    for bad in (
        ServerWish([], public),
        ServerWish(["10.0.0.3"], public),
        ServerWish(['h:1"\n'], public),
        ServerWish(["h:65000"], public),
        ServerWish(["h:1"] * 99, public),
        ServerWish(["h:1"], "no key"),
        ServerWish(["h:1"], ca.certificate.decode()),
    ):
        assert asked(good, bad).problem
        assert not list(places.machines.iterdir())
    assert asked(good, wish).certificate
    assert places.read_machines()["third"].server
    assert asked(plain, None).code == "EEXIST"  # the name is taken, and the token still good


@pytest.mark.parametrize("server", ["h:port", "h:", "h", "h:99999", "h:0", "", "h\n:1", "[::1]", ":1"])
def test_a_token_with_no_address_is_none(server: str) -> None:
    text = Invitation.new([server], bytes(32), keys.Key.new(keys.ACCOUNT)).text
    with pytest.raises(Fault, match="no token of a team"):
        Invitation.read(text)
