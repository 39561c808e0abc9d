"""`ctx team init`, `join` and `leave`: begin or end this machine's membership of a team, or tell it of the
server's other address.

Rules: member.json is the last file that is written, and the first that is removed: a machine is a member
entirely or not at all. A flag is required for a step that ends other machines' work.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import sys
import time
from functools import partial

import trio
from msgspec.structs import replace

from cortexfs.cli import output, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.team import live
from cortexfs.core.errors import Fault
from cortexfs.state import directories, whole_files
from cortexfs.team import certificates, joining, keys, messages, server
from cortexfs.team.joining import Invitation, ServerWish, Wish
from cortexfs.team.places import (
    Export,
    MachineRecord,
    Member,
    ServerRecord,
    TeamPlaces,
    TeamSecrets,
    read,
    written,
)
from cortexfs.team.server import NatsSettings

LISTEN = "0.0.0.0:4222"


def init(options: argparse.Namespace) -> None:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    if places.is_joined:
        member = places.read_member()
        account = keys.Key.of_seed(places.read_secrets().account)  # only where the team was begun
        _check_kept(member, options, team=member.team, listen=_engine(places).listen)
        if options.address:
            member = _move(places, member, options)
            moved = f"{member.machine} is reached at {', '.join(member.servers)}"
            output.say(f"{moved}; {reload.tell(options.root)}")
        invitation = _invitation(places, member.servers, account, is_server=options.server)
        title = f"a token of the team {member.team}"
    else:
        directories.create(where)
        invitation = _begin(places, options)
        member = places.read_member()
        begun = f"began the team {member.team} at {', '.join(member.servers)}"
        output.say(f"{begun}; {reload.tell(options.root)}")
        live.wait(options.root, places)
        title = "a token"
    output.say(f"{title}, good once and for {joining.LIFE_SECONDS // 60} minutes, for: ctx team join TOKEN")
    print(invitation.text)


def _check_kept(member: Member, options: argparse.Namespace, **kept: object) -> None:
    """Raises EEXIST if an option would change what a member keeps. An option that repeats it is fine."""
    kept["name"] = member.machine
    if changed := [f"--{each}" for each in kept if getattr(options, each) not in (None, False, kept[each])]:
        why = f"this machine is {member.machine} in the team {member.team} already"
        raise Fault("EEXIST", f"{why}, and keeps its {', '.join(changed)}; see: ctx team leave --help")


def _engine(places: TeamPlaces) -> NatsSettings:
    engine = read(places.engine, NatsSettings, "the file of a team's server")
    assert engine is not None  # as the team was begun here
    return engine


def _move(places: TeamPlaces, member: Member, options: argparse.Namespace) -> Member:
    """Give the server here other addresses, and a certificate that also names its former ones."""
    secrets, record = places.read_secrets(), places.read_machines()[member.machine]
    assert record.server is not None
    addresses = _addresses(options, _engine(places).listen)
    hosts = [each.rpartition(":")[0].strip("[]") for each in dict.fromkeys((*addresses, *member.servers))]
    ca = certificates.Pem(secrets.authority.encode(), secrets.authority_key.encode())
    public = certificates.public_of((places.server / "server.key").read_bytes())
    certificate = certificates.of_server(ca, member.machine, [*hosts, *joining.LOCAL], public)
    whole_files.replace(places.server / "server.pem", [certificate], 0o600)
    moved = replace(record.server, addresses=addresses, route=server.route(addresses[0]))
    written(places.machines / member.machine, replace(record, server=moved))
    member = replace(member, servers=addresses)
    places.write_member(member)
    return member


def _addresses(options: argparse.Namespace, listen: str) -> list[str]:
    """Returns the addresses of a server here, HOST:PORT."""
    port = joining.check_address(listen).rpartition(":")[2]
    addresses = []
    for each in options.address or [socket.gethostname()]:
        host = each.strip("[]")
        try:
            addresses.append(joining.check_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        except Fault:
            why = f"{each[:80]!r} is no name or number of a machine"
            raise Fault("EINVAL", f"{why}; write --address HOST, without a port") from None
    return addresses


def _begin(places: TeamPlaces, options: argparse.Namespace) -> Invitation:
    team, listen = options.team or "team", options.listen or LISTEN
    machine, servers = messages.check_machine(options.name or _host()), _addresses(options, listen)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", team):
        raise Fault("EINVAL", "a team's name has 1 to 64 letters, digits and . _ -")
    program = server.program()
    places.server.mkdir(mode=0o700, parents=True, exist_ok=True)
    places.folder.chmod(0o700)
    places.machines.mkdir(mode=0o700, exist_ok=True)
    ca, own = certificates.authority(team), certificates.new_key()
    hosts = [each.rpartition(":")[0].strip("[]") for each in servers]
    public = certificates.public_of(own)
    certificate = certificates.of_server(ca, machine, [*hosts, *joining.LOCAL], public)
    operator, account, system = (keys.Key.new(kind) for kind in (keys.OPERATOR, keys.ACCOUNT, keys.ACCOUNT))
    authority = ca.certificate.decode()
    secrets = TeamSecrets(operator.seed, account.seed, system.seed, authority, ca.key.decode())
    claims = server.claims(secrets, {})
    engine = NatsSettings(program, listen, account.public, system.public, claims)
    server.keep(places, engine, own, certificate, authority)
    written(places.secrets, secrets)
    key = keys.Key.new(keys.USER)
    token = joining.machine_token(account, machine, key.public, is_first=True)
    record = ServerRecord(machine, servers, server.route(servers[0]), certificates.key_pin(public))
    written(places.machines / machine, MachineRecord(key.public, int(time.time()), server=record))
    invitation = _invitation(places, servers, account, is_server=options.server)
    places.write_member(Member(team, machine, servers, account.public, key.seed, token, authority))
    return invitation


def _invitation(places: TeamPlaces, servers: list[str], account: keys.Key, *, is_server: bool) -> Invitation:
    pin = certificates.pin((places.server / "server.pem").read_bytes())
    invitation = Invitation.new(servers, pin, account)
    joining.keep(places.tokens, invitation, is_server=is_server)
    return invitation


def join(options: argparse.Namespace) -> None:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    read_token = sys.stdin.readline if sys.stdin.isatty() else sys.stdin.read
    invitation = Invitation.read(read_token() if options.token == "-" else options.token)
    if places.is_joined:
        member = places.read_member()
        if member.account != invitation.account or places.engine.exists():
            raise Fault("EEXIST", f"this machine is in the team {member.team} already; see: ctx team leave")
        _check_kept(member, options, server=None, listen=None, address=None)
        places.write_member(replace(member, servers=invitation.servers))
        where_now = f"{member.machine} looks for the team {member.team} at {', '.join(invitation.servers)}"
        return output.say(f"{where_now}; {reload.tell(options.root)}")
    wish = Wish(messages.check_machine(options.name or _host()))
    listen = options.listen or LISTEN
    if options.server:
        program, own = server.program(), certificates.new_key()
        wish = replace(wish, server=ServerWish(_addresses(options, listen), certificates.public_of(own)))
    directories.create(where)
    accepted = partial(joining.accept, invitation, wish)
    member, answer = trio.run(accepted, strict_exception_groups=True)
    if options.server:
        engine = NatsSettings(program, listen, member.account, answer.system, answer.claims)
        server.keep(places, engine, own, answer.certificate.encode(), member.authority)
    places.write_member(member)
    output.say(f"{member.machine} joined the team {member.team}; {reload.tell(options.root)}")
    live.wait(options.root, places)


def leave(options: argparse.Namespace) -> None:
    places = TeamPlaces(*places_of(options))
    member = places.read_member()
    if options.machine:
        return _remove(places, member, options.machine)
    if places.engine.exists() and not options.end:
        _refuse_to_leave(places, member)
    if places.exports.exists():
        written(places.exports, list[Export]())
        live.wait(options.root, places, lambda report: not report.exports)
    places.member.unlink()
    report = reload.tell(options.root)
    shutil.rmtree(places.folder)
    output.say(f"{member.machine} is in no team any more; {report}")


def _remove(places: TeamPlaces, member: Member, machine: str) -> None:
    """Remove another machine from the team."""
    places.read_secrets()  # raises a Fault if the team was not begun here
    records = places.read_machines()
    record = records.get(machine)
    if record is None or machine == member.machine:
        known = ", ".join(
            name for name, other in records.items() if name != member.machine and not other.removed
        )
        raise Fault("ENOENT", f"there is no other machine {machine} in the team; there are {known or 'none'}")
    # The servers refuse a token that was issued before this time: also one of a clock that was ahead.
    written(places.machines / machine, replace(record, removed=max(int(time.time()), record.joined + 60)))
    output.say(
        f"removed {machine} from the team {member.team}; the daemon here tells its servers to refuse it"
    )


def _refuse_to_leave(places: TeamPlaces, member: Member) -> None:
    if places.secrets.exists():
        why = "has its keys on this machine, and no machine could join it without them"
        raise Fault("EACCES", f"the team {member.team} {why}; ctx team leave --end ends the team")
    why = f"first run ctx team leave --machine {member.machine} on the machine that began the team"
    mend = f"{why}, then ctx team leave --end here"
    raise Fault("EACCES", f"this machine is a server of the team {member.team}: {mend}")


def _host() -> str:
    """Returns the host's name in the form of a machine's name."""
    name = re.sub("[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())[:31].strip("-")
    return name or "machine"
