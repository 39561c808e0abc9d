"""A link and messages that it must not trust, without a server between them."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.cli.main import main
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Capabilities
from cortexfs.team import certificates, directory, joining, keys, server, subjects
from cortexfs.team import exporting as exporting_
from cortexfs.team.directory import FACTS, INCARNATION, TOKEN, Directory
from cortexfs.team.exporting import Exporting
from cortexfs.team.joining import Invitation, Issuer, Reply, ServerWish, Wish, machine_token
from cortexfs.team.mapping import Mapping
from cortexfs.team.messages import RemoteObject
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import (
    Export,
    MachineRecord,
    Member,
    ServerRecord,
    TeamFacts,
    TeamPlaces,
    TeamSecrets,
    written,
)
from cortexfs.team.presence import QUIET_SECONDS, Presence
from cortexfs.team.server import NatsSettings, TeamServer


def test_a_machine_that_was_removed_is_met_no_more(tmp_path: Path) -> None:
    # This holds after a restart too, as another machine can make the server send old messages again.
    account, key = keys.Key.new(keys.ACCOUNT), keys.Key.new(keys.USER)
    places = TeamPlaces(tmp_path, tmp_path)
    places.folder.mkdir()
    met = entry("lost", TOKEN, machine_token(account, "lost", key.public).encode())
    gone, before, forgotten = (  # the last by the first machine, once it has an old backup's files
        entry("box", FACTS, keys.seal(account, subjects.entry("box", *FACTS), said, when))
        for said, when in (
            (msgspec.msgpack.encode(TeamFacts([], ["lost"])), time.time()),
            (msgspec.msgpack.encode(TeamFacts()), time.time() - 60),
            (msgspec.msgpack.encode(TeamFacts()), time.time() + 60),
        )
    )

    def begun() -> Directory:
        return learning(places, "laptop", account)

    first = begun()
    first.hear(met)
    assert first.key_of("lost") == key.public_raw
    first.hear(gone)
    first.hear(forgotten)
    for known in (first, begun()):
        for each in (before, met):
            with pytest.raises(Fault, match="EPROTO"):
                known.hear(each)
        with pytest.raises(Fault, match="EPROTO"):
            known.key_of("lost")


def entry(machine: str, what: tuple[str, str], data: bytes) -> Delivery:
    return Delivery(subjects.entry(machine, *what), "1", "", "", {}, data)


def learning(
    places: TeamPlaces,
    machine: str,
    account: keys.Key,
    learnt: Callable[[TeamFacts], None] = lambda said: None,
) -> Directory:
    member = Member("team", machine, [], account.public, "", "", "")
    return Directory(places, member, learnt, lambda said: None)


class Told(Client):
    """A client without a connection, which keeps its messages."""

    def __init__(self) -> None:
        super().__init__("box", [], Account(keys.Key.new(keys.USER), ""), "")
        self.said: list[bytes] = []

    def publish(self, subject: str, data: bytes, *about: Any, **more: Any) -> None:
        self.said.append(data)


def test_a_call_is_proven_to_one_machine_on_one_subject_for_a_minute() -> None:
    laptop, box, third = (keys.Key.new(keys.USER) for _ in range(3))
    subject, data = subjects.call("box", "laptop", "tool", "a"), b"said"
    said = keys.prove(laptop, box.public_raw, subject, data)
    assert keys.proven_data(box, laptop.public_raw, subject, said) == data
    keys.check_time(said)
    for each in (
        keys.prove(laptop, box.public_raw, subject, data, time.time() + off)
        for off in (-keys.PROVEN_SECONDS - 1, keys.PROVEN_SECONDS + 1)
    ):
        with pytest.raises(Fault, match="differs from the clock here by 61 s; compare both"):
            keys.check_time(each)
    for key, public, on, heard in (
        (third, laptop.public_raw, subject, said),
        (box, third.public_raw, subject, said),
        (box, laptop.public_raw, subject + "a", said),
        *((box, laptop.public_raw, subject, each) for each in (said[:-1], said + b"a", b"")),
        *((box, laptop.public_raw, subject, flipped(said, at)) for at in range(len(said))),
    ):
        with pytest.raises(Fault, match="EPROTO"):
            keys.proven_data(key, public, on, heard)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# These points have a small order, so everybody would know the shared secret: RFC 7748, 6.1.
@pytest.mark.parametrize("y", [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255 + 1])
def test_no_secret_is_shared_with_a_key_that_is_none(y: int) -> None:
    key = keys.Key.new(keys.USER)
    with pytest.raises(Fault, match="EPROTO"):
        key.secret_with(y.to_bytes(32, "little"))


def test_who_comes_and_goes_is_followed_at_a_pace() -> None:
    trio.run(_coming_and_going, clock=trio.testing.MockClock(autojump_threshold=0))


async def _coming_and_going() -> None:
    client, moves = Told(), list[tuple[str, bool]]()
    presence = Presence(client, {"laptop"}, lambda machine, there: moves.append((machine, there)))

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


def of_no_known_curve(public: str) -> str:
    begin, *lines, end, _ = public.split("\n")
    data = base64.b64decode("".join(lines)).replace(bytes.fromhex("2a8648ce3d030107"), b"\x2a" * 8)
    return "\n".join([begin, base64.b64encode(data).decode(), end, ""])


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
    assert "does not allow --server" in asked(plain, wish).problem
    for bad in (
        ServerWish([], public),
        ServerWish(["10.0.0.3"], public),
        ServerWish(['h:1"\n'], public),
        ServerWish(["h:65000"], public),
        ServerWish(["h:1"] * 99, public),
        ServerWish(["h:1"], "no key"),
        ServerWish(["h:1"], ca.certificate.decode()),
        ServerWish(["h:1"], of_no_known_curve(public)),
    ):
        assert asked(good, bad).problem
        assert not list(places.machines.iterdir())
    assert asked(good, wish).certificate
    assert places.read_machines()["third"].server
    assert asked(plain, None).code == "EEXIST"  # the name is taken, but the token is still valid


PEM = certificates.authority("t").certificate.decode()
QUOTE = 'x"\nlog_file: "/etc/cron.d/x'  # would add a line to the configuration of root's server


@pytest.mark.parametrize(
    "said",
    [
        Reply(team="t", system=QUOTE, authority=PEM, claims=["a", "b", "c"]),
        Reply(team="t", system="A", authority=PEM, claims=["a", "b", QUOTE]),
        Reply(team="t", system="A", authority=PEM, claims=["a", "b"]),
        Reply(team="t\x1b[2J", system="A", authority=PEM, claims=["a", "b", "c"]),
        Reply(team="t", servers=[QUOTE], system="A", authority=PEM, claims=["a", "b", "c"]),
        Reply(team="t", system="A", authority="", claims=["a", "b", "c"]),
        Reply(team="t", system="A", authority="-----BEGIN CERTIFICATE-----", claims=["a", "b", "c"]),
    ],
)
def test_who_began_a_team_writes_nothing_into_the_files_of_another(said: Reply) -> None:
    wish = Wish("third", "", ServerWish(["h:1"], ""))
    with pytest.raises(Fault):
        joining.check_reply(said, wish)
    joining.check_reply(
        Reply(team="t", servers=["h:1"], system="A", authority=PEM, claims=["a.b-_", "b", "c"]), wish
    )


@pytest.mark.parametrize(
    "bad",
    [
        ServerRecord("box", ["h:1"], QUOTE, "ab"),
        ServerRecord("box", ["h:1"], "h:2001", QUOTE),
        ServerRecord("box", ["h:port"], "h:2001", "ab"),
        ServerRecord("box" + QUOTE, ["h:1"], "h:2001", "ab"),
    ],
)
def test_no_fact_of_a_team_is_more_than_words(bad: ServerRecord, tmp_path: Path) -> None:
    account, places = keys.Key.new(keys.ACCOUNT), TeamPlaces(tmp_path, tmp_path)
    places.folder.mkdir()
    changed: list[TeamFacts] = []
    known = learning(places, "laptop", account, changed.append)
    subject = subjects.entry("box", *FACTS)
    for each in (bad, ServerRecord("box", ["h:1"], "h:2001", "ab")):
        sealed = keys.seal(account, subject, msgspec.msgpack.encode(TeamFacts([each])), time.time())
        if each is bad:
            with pytest.raises(Fault):
                known.hear(entry("box", FACTS, sealed))
            assert (changed, places.read_facts()) == ([], TeamFacts())
        else:
            known.hear(entry("box", FACTS, sealed))
            assert changed == [places.read_facts()]


def test_a_full_directory_does_not_keep_a_machine_from_its_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MAX_OBJECTS", 0)
    account, key = keys.Key.new(keys.ACCOUNT), keys.Key.new(keys.USER)
    known = learning(TeamPlaces(tmp_path, tmp_path), "laptop", account)
    known.hear(entry("box", TOKEN, machine_token(account, "box", key.public).encode()))
    sealed = keys.seal(key, subjects.entry("box", *INCARNATION), b"word")
    known.hear(entry("box", INCARNATION, sealed))
    assert known.incarnation_of("box") == b"word"
    with pytest.raises(Fault, match="EAGAIN"):
        known.hear(entry("box", ("tool", "a"), keys.seal(key, subjects.entry("box", "tool", "a"), b"")))


async def test_an_export_that_finds_no_room_keeps_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting_, "LOOK_SECONDS", 0)
    said: list[str] = []
    full = subjects.entry("box", "tool", "full")

    class Full(Told):
        async def stored(self, subject: str, data: bytes, passed: int = 0) -> None:
            said.append(subject)
            if said.count(full) == 3:  # the export is tried again until there is room
                scope.cancel()
            if subject == full:
                raise Fault("ENOSPC", "it is full")

    class Two(Exporting):
        def _look(self) -> dict[str, RemoteObject]:
            self.problems = {}
            made = (
                RemoteObject("box", "tool", name, "", b"{}", Capabilities(), None, False, {})
                for name in ("full", "small")
            )
            return {subjects.entry("box", one.class_, one.name): one for one in made}

    key = keys.Key.new(keys.USER)
    places = TeamPlaces(Path("/nowhere"), Path("/nowhere"))
    known = learning(places, "box", key)
    exporting = Two("/nowhere", Mapping(places), Full())
    with trio.CancelScope() as scope:
        await exporting.run(known, "token")
    assert said.count(subjects.entry("box", "tool", "small")) == 1
    assert exporting.problems == {"tool/full": "it is full"}


@pytest.mark.parametrize("server", ["h:port", "h:", "h", "h:99999", "h:0", "", "h\n:1", "[::1]", ":1"])
def test_a_token_with_no_address_is_none(server: str) -> None:
    text = Invitation.new([server], bytes(32), keys.Key.new(keys.ACCOUNT)).text
    with pytest.raises(Fault, match="not a token of a team"):
        Invitation.read(text)


def test_exports_are_listed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = TeamPlaces(tmp_path, tmp_path)
    places.write_member(Member("team", "box", [], "", "", "", ""))
    written(places.exports, [Export("tool/make", ["alice@laptop"], "bob")])
    assert main(["team", "export", "--json", "--state", str(tmp_path), "--config", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"object": "tool/make", "to": ["alice@laptop"], "as": "bob", "agents": ""}
    ]


async def test_a_machine_whose_clock_was_ahead_is_believed_again() -> None:
    # Its earlier link spoke by that clock; others know the time, and so does the stream.
    account, key = keys.Key.new(keys.ACCOUNT), keys.Key.new(keys.USER)
    nowhere = TeamPlaces(Path("/nowhere"), Path("/nowhere"))
    other, token_ = learning(nowhere, "laptop", account), machine_token(account, "box", key.public)
    subject = subjects.entry("box", *INCARNATION)
    early = entry("box", INCARNATION, keys.seal(key, subject, b"before", time.time() + 9e8))
    other.hear(entry("box", TOKEN, token_.encode()))
    other.hear(early)

    class Stream(Told):
        async def stored(self, subject: str, data: bytes, passed: int = 0) -> None:
            other.hear(Delivery(subject, "1", "", "", {}, data))

    client = Stream()
    client.key = key
    member = Member("team", "box", [], account.public, key.seed, token_, "")
    known = Directory(nowhere, member, lambda said: None, lambda said: None)
    known.hear(early)
    exporting = Exporting("/nowhere", Mapping(nowhere), client)
    await exporting.introduce(known, token_)
    assert other.incarnation_of("box") == exporting.incarnation


def test_a_machine_that_joined_by_a_clock_that_was_ahead_is_refused_once_removed(tmp_path: Path) -> None:
    # abi.md 14.11: the servers refuse the tokens that were issued before the removal
    places, joined = TeamPlaces(tmp_path, tmp_path), int(time.time()) + 9_000
    places.write_member(Member("team", "box", [], "", "", "", ""))
    places.machines.mkdir()
    places.server.mkdir()
    written(places.secrets, TeamSecrets("", "", "", "", ""))
    written(places.machines / "lost", MachineRecord("", joined))
    here = ["--state", str(tmp_path), "--config", str(tmp_path)]
    assert main(["team", "leave", "--machine", "lost", *here]) == 0
    assert places.read_machines()["lost"].removed > joined


def test_a_server_that_starts_on_a_full_disk_has_room_once_there_is_some(tmp_path: Path) -> None:
    # NATS would take three quarters of what is free when it starts, for as long as it runs.
    places, disk = TeamPlaces(tmp_path, tmp_path), os.statvfs(tmp_path)
    server.keep(places, NatsSettings("nats-server", "h:1", "a", "s", ["o", "a", "s"]), b"", b"", "")
    TeamServer(places, "box").apply(TeamFacts([ServerRecord("box", ["h:1"], "h:2001", "ab")], [], True))
    room = disk.f_blocks * disk.f_frsize * 3 // 4
    assert f"max_file_store: {room}\n" in (places.server / "nats.conf").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="a user's own daemon has no map")
def test_an_export_that_nobody_can_use_or_that_replaces_another_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 14.4
    places = TeamPlaces(tmp_path, tmp_path)
    places.write_member(Member("team", "box", [], "", "", "", ""))

    def said(*words: str) -> str:
        line = ["team", "export", "tool/make", *words, "--root", str(tmp_path), "--state", str(tmp_path)]
        assert main([*line, "--config", str(tmp_path)]) == 0
        return capsys.readouterr().err

    assert "names a user for alice@laptop, so the call is EACCES" in said("--to", "alice@laptop")
    replaced = said("--to", "carol@laptop", "--as", "root")
    assert "replaces the export of tool/make to alice@laptop; " in replaced
    assert "EACCES" not in replaced
    places.map.write_text("alice@laptop = root\n")
    both = said("--to", "alice@laptop", "--to", "carol@laptop", "--to", "*@desk")
    assert "names a user for carol@laptop, so" in both
    assert both.count("\n") == 2, both
