"""The files of a member of a team, below `team/` of the daemon's state, and their contents.

    member.json     who this machine is: its key, its token, the servers and their authority (0600)
    exports.json    what it exports, and to whom
    facts.json      what the team's key says of the team: its servers, and who is a member no more
    status.json     what the link says of itself
    sessions.json   how far the team's sessions have been read
    server/         on a machine that is a server: the configuration of NATS, its keys, its logs
    tokens/         on the machine that began the team: one file for each token that is not used yet
    machines/       there too: one file for each machine that has joined

`team.map` lies in the directory of the configuration, as an administrator writes it.
This file must never know how any of these files is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.state import believed, whole_files

T = TypeVar("T")

FOLDER = "team"
MAP = "team.map"
_MAX_FILE = 1 << 20


class Member(msgspec.Struct, frozen=True):
    """A machine's membership of a team."""

    team: str
    machine: str
    servers: list[str]  # HOST:PORT
    account: str  # the public key of the team
    seed: str  # of this machine
    token: str  # its JWT
    authority: str  # PEM


class TeamSecrets(msgspec.Struct, frozen=True):
    """The keys of the team, which are on the machine that began it."""

    operator: str
    account: str
    system: str
    authority: str  # its certificate and key, PEM
    authority_key: str


class Export(msgspec.Struct, frozen=True):
    """An object that others may call: the callers (USER@MACHINE, with * for all), and the user here."""

    object: str
    to: list[str]
    as_user: str = ""
    agents: str = ""  # the agent here whose policy decides about calls made by agents there

    @property
    def as_json(self) -> dict[str, Any]:
        """Returns the export as commands print it in JSON."""
        return {"object": self.object, "to": self.to, "as": self.as_user, "agents": self.agents}


class ServerRecord(msgspec.Struct, frozen=True):
    """A machine that is a server of the team."""

    machine: str
    addresses: list[str]  # HOST:PORT, for clients
    route: str  # HOST:PORT, for the other servers
    pin: str  # of its certificate's key


class TeamFacts(msgspec.Struct, frozen=True):
    """The facts about the team that its key has signed."""

    servers: list[ServerRecord] = []
    removed: list[str] = []  # removed machines, whose names are not given again
    is_cluster: bool = False
    stamp: int = 0  # of the signed message, in milliseconds; older ones are not believed


class MachineRecord(msgspec.Struct, frozen=True):
    """A machine, in the records of the machine that began the team."""

    public: str
    joined: int
    removed: int = 0  # the time of its removal
    server: ServerRecord | None = None


class TeamPlaces:
    def __init__(self, state: Path, config: Path) -> None:
        self.folder = state / FOLDER
        self.member = self.folder / "member.json"
        self.exports = self.folder / "exports.json"
        self.facts = self.folder / "facts.json"
        self.status = self.folder / "status.json"
        self.cursor = self.folder / "sessions.json"
        self.server = self.folder / "server"
        self.secrets = self.server / "secrets.json"
        self.engine = self.server / "engine.json"
        self.tokens = self.folder / "tokens"
        self.machines = self.folder / "machines"
        self.map = config / MAP

    @property
    def is_joined(self) -> bool:
        return self.member.exists()

    def read_member(self) -> Member:
        member = read(self.member, Member, "the file of this machine's part in a team")
        if member is None:
            raise Fault("EHOSTDOWN", "this machine is in no team; see: ctx team join --help")
        return member

    def write_member(self, member: Member) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written(self.member, member)

    def read_secrets(self) -> TeamSecrets:
        secrets = read(self.secrets, TeamSecrets, "the file of the team's keys")
        if secrets is None:
            raise Fault("EACCES", "the keys of the team are on the machine where it was begun; do it there")
        return secrets

    def read_machines(self) -> dict[str, MachineRecord]:
        machines = {}
        for path in sorted(self.machines.glob("*")) if self.machines.exists() else ():
            if (record := read(path, MachineRecord, "the file of a machine")) is not None:
                machines[path.name] = record
        return machines

    def removed(self) -> dict[str, int]:
        """Returns the public keys of removed machines, with the times of their removal."""
        return {record.public: record.removed for record in self.read_machines().values() if record.removed}

    def read_facts(self) -> TeamFacts:
        return read(self.facts, TeamFacts, "the file of a team's facts") or TeamFacts()

    def read_exports(self) -> list[Export]:
        return read(self.exports, list[Export], "the list of what this machine exports") or []


def written(path: Path, value: object) -> None:
    whole_files.replace(path, [msgspec.json.format(msgspec.json.encode(value)), b"\n"], 0o600)


def read(path: Path, type_: type[T], title: str) -> T | None:
    """Returns the value in such a file, or None if there is no file."""
    data = believed.content_of(path, _MAX_FILE, title)
    try:
        return None if data is None else msgspec.json.decode(data, type=type_)
    except UNREADABLE as error:
        raise Fault("EINVAL", f"{path} is damaged: {error}") from None
