"""`ctx team init`, `join` and `leave`: whether this machine is in a team.

Rules: member.json is the last file that is written, and the first that is removed: half a member is none.
What ends other machines' work is asked for by a flag.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import time
from functools import partial

import trio
from msgspec.structs import replace

from cortexfs.cli import output, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.team import live
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.state import directories
from cortexfs.team import certificates, joining, keys, messages, server
from cortexfs.team.certificates import Pem
from cortexfs.team.joining import Invitation
from cortexfs.team.places import Export, MachineRecord, Member, TeamPlaces, TeamSecrets, written

_LISTEN = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")
_ADDRESS = re.compile(r"[A-Za-z0-9.-]{1,253}|[0-9a-fA-F:]{2,45}")
LOCAL = ("localhost", "127.0.0.1", "::1")


def init(options: argparse.Namespace) -> int:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    if places.is_joined:
        invitation = _another(places)
        what = f"a token of the team {places.read_member().team}"
    else:
        directories.create(where)
        invitation = _begun(places, options)
        output.say(f"began the team {options.team}; {reload.told(options.root)}")
        live.wait(options.root, places)
        what = "a token"
    output.say(f"{what}, good once and for {joining.LIFE_SECONDS // 60} minutes, for: ctx team join TOKEN")
    print(invitation.text)
    return EXIT_OK


def _begun(places: TeamPlaces, options: argparse.Namespace) -> Invitation:
    machine = messages.check_machine(options.name or _host())
    if not _LISTEN.fullmatch(options.listen):
        raise Fault("EINVAL", f"--listen is HOST:PORT, and not {options.listen!r}")
    given = options.address or [socket.gethostname()]
    for address in given:
        if not _ADDRESS.fullmatch(address):
            raise Fault("EINVAL", f"--address is a name or an address, and not {address!r}")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", options.team):
        raise Fault("EINVAL", "a team's name has 1 to 64 letters, digits and . _ -")
    program = server.program()
    port = options.listen.rpartition(":")[2]
    servers = [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in given]
    places.server.mkdir(mode=0o700, parents=True, exist_ok=True)
    places.folder.chmod(0o700)
    places.machines.mkdir(mode=0o700, exist_ok=True)
    ca = certificates.authority(options.team)
    certificate = certificates.of_server(ca, machine, list(dict.fromkeys([*given, *LOCAL])))
    server.write(places.server / "server.pem", certificate.certificate)
    server.write(places.server / "server.key", certificate.key)
    operator, account, system = (keys.Key.new(kind) for kind in (keys.OPERATOR, keys.ACCOUNT, keys.ACCOUNT))
    kept = TeamSecrets(operator.seed, account.seed, system.seed, ca.certificate.decode(), ca.key.decode())
    server.configure(places, options.team, machine, options.listen, kept, program)
    written(places.secrets, kept)
    key = keys.Key.new(keys.USER)
    token = joining.machine_token(account, machine, key.public, is_first=True)
    written(places.machines / machine, MachineRecord(key.public, int(time.time())))
    invitation = _invitation(places, servers, account, certificate)
    authority = ca.certificate.decode()
    places.write_member(Member(options.team, machine, servers, account.public, key.seed, token, authority))
    return invitation


def _another(places: TeamPlaces) -> Invitation:
    """Another token, where the team was begun."""
    account = keys.Key.of_seed(places.read_secrets().account)
    certificate = Pem((places.server / "server.pem").read_bytes(), b"")
    return _invitation(places, places.read_member().servers, account, certificate)


def _invitation(places: TeamPlaces, servers: list[str], account: keys.Key, certificate: Pem) -> Invitation:
    invitation = Invitation.new(servers, certificates.pin(certificate.certificate), account)
    joining.keep(places.tokens, invitation)
    return invitation


def join(options: argparse.Namespace) -> int:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    if places.is_joined:
        raise Fault(
            "EEXIST", f"this machine is in the team {places.read_member().team} already; see: ctx team leave"
        )
    invitation = Invitation.read(input() if options.token == "-" else options.token)
    machine = messages.check_machine(options.name or _host())
    directories.create(where)
    member = trio.run(partial(joining.accept, invitation, machine), strict_exception_groups=True)
    places.write_member(member)
    output.say(f"{machine} joined the team {member.team}; {reload.told(options.root)}")
    live.wait(options.root, places)
    return EXIT_OK


def leave(options: argparse.Namespace) -> int:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    member = places.read_member()
    if options.machine:
        return _removed(places, member, options.machine)
    if places.secrets.exists() and not options.end:
        why = "its server and keys are here, and no machine of it could go on"
        raise Fault(
            "EACCES", f"the team {member.team} was begun on this machine: {why}; ctx team leave --end ends it"
        )
    if places.exports.exists():
        written(places.exports, list[Export]())
        live.wait(options.root, places, lambda said: not said.exports)
    places.member.unlink()
    said = reload.told(options.root)
    shutil.rmtree(places.folder)
    output.say(f"{member.machine} is in no team any more; {said}")
    return EXIT_OK


def _removed(places: TeamPlaces, member: Member, machine: str) -> int:
    """Have another machine be no member any more."""
    kept, records = places.read_secrets(), places.read_machines()
    record = records.get(machine)
    if record is None or machine == member.machine:
        known = ", ".join(name for name, one in records.items() if name != member.machine and not one.removed)
        raise Fault("ENOENT", f"there is no other machine {machine} in the team; there are {known or 'none'}")
    written(places.machines / machine, replace(record, removed=int(time.time())))
    listen = server.listening(places)
    server.configure(places, member.team, member.machine, listen, kept, server.program())
    output.say(f"{machine} is in the team {member.team} no more; the server begins anew, and refuses it")
    return EXIT_OK


def _host() -> str:
    """The host's name as one of a machine."""
    name = re.sub("[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())[:31].strip("-")
    return name or "machine"
