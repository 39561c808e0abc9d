"""The agents on the disk: a record for each of them but agent/base.

    <state>/agents/NAME.json           {"name", "created", "uid", "gid", "description", "controls"}
    <state>/agents/home/UID/NAME.json  the same of a user's own, which only the daemon writes

A record has the controls that an agent started with. Later writes into its `.d/` are kept elsewhere, override
the record, and are removed with the agent.

Rules: a record that is damaged is a sentence in `broken`, and everything else works. Its agent stays in the
tree, answers no call, and keeps the controls that were written. A record is there as a whole or not at all.
These calls block: in the daemon they belong in a thread.
This file must never know the tree, or what a run is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from cortexfs.agents import defaults
from cortexfs.core import names, value_formats
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.registry import Object
from cortexfs.core.tree import controls, places
from cortexfs.state import believed, locked_store, no_links, whole_files

FOLDER = "agents"
OWN = "home"
SUFFIX = ".json"
MAX_FILE = 1 << 20  # room for every writable control at its longest
MAX_DESCRIPTION = 4 << 10

LATEST = 9_000_000_000  # seconds: as nanoseconds they have to fit a file's time

Id = Annotated[int, Meta(ge=0, le=value_formats.U32)]


class AgentRecord(msgspec.Struct, frozen=True):
    name: str
    created: Annotated[float, Meta(ge=0, le=LATEST)]
    uid: Id
    gid: Id
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION)] = ""
    controls: dict[str, str] = {}


class AgentsOnDisk(NamedTuple):
    objects: list[Object]
    broken: dict[str, str]  # the reasons, by name


def load(state: Path, since: float = 0.0) -> AgentsOnDisk:
    """Returns every agent. agent/base is among them, created at `since`, when the mount began."""
    found = {defaults.BASE: _object(base(since), "builtin")}
    broken: dict[str, str] = {}
    for path in _paths(state):
        try:
            found[path.stem] = _object(read(path), "agent")
        except Fault as fault:
            broken[path.stem] = fault.message
            if not names.fault_of(path.stem):
                found[path.stem] = _broken(path, fault.message)
    return AgentsOnDisk(list(found.values()), broken)


def load_own(state: Path) -> list[Object]:
    """Returns the users' own agents. A damaged agent is among them, as broken."""
    found = []
    for folder in _entries(state / FOLDER / OWN):
        with contextlib.suppress(Fault):  # a folder that is not ours
            uid = places.uid_of(folder.name)
            found += [_own(path, uid) for path in _paths(state, uid) if not names.fault_of(path.stem)]
    return found


def _own(path: Path, uid: int) -> Object:
    try:
        believed.folder(path.parent.parent)
        return own_object(read(path), uid)
    except Fault as fault:
        return msgspec.structs.replace(_broken(path, fault.message), home=uid)


def own(name: str, uid: int, gid: int, now: float) -> AgentRecord:
    """Returns the record of a user's new agent, which talks and has no tools."""
    return AgentRecord(name, now, uid, gid, "", defaults.controls(name, defaults.MODEL, ()))


def own_object(record: AgentRecord, uid: int) -> Object:
    return msgspec.structs.replace(_object(record, "agent"), home=uid)


def base(since: float = 0.0) -> AgentRecord:
    """Returns the record of agent/base, which is always there and may read."""
    return AgentRecord(
        name=defaults.BASE,
        created=since,
        uid=os.getuid(),
        gid=os.getgid(),
        description=defaults.BASE_DESCRIPTION,
        controls=defaults.controls(defaults.BASE, defaults.MODEL, defaults.BASE_TOOLS),
    )


def read(path: Path) -> AgentRecord:
    """Returns one record, checked. Raises a Fault with what is wrong with it."""
    if (data := believed.content_of(path, MAX_FILE, "agent's record")) is None:
        raise Fault("ENOENT", f"{path} cannot be read: No such file or directory")
    try:
        record = msgspec.json.decode(data, type=AgentRecord)
    except UNREADABLE as problem:
        raise Fault("EINVAL", f"{path} cannot be read: {problem}") from None
    if record.name != path.stem:
        raise Fault("EINVAL", f"{path} must have the name of its agent: {record.name}{SUFFIX}")
    try:
        check(record)
    except Fault as fault:
        raise Fault("EINVAL", f"{path}: {fault.message}") from None
    return record


def check(record: AgentRecord) -> None:
    """Raises EINVAL if the record's name or a control of it could not be in the tree."""
    names.check_object("agent", record.name)
    for name, text in record.controls.items():
        control = controls.find("agent", name)
        if control is None or control.check is None:
            raise Fault("EINVAL", f"{name!r} is not a control that an agent's record may set")
        try:
            controls.judge(control, text.encode())
        except Fault as fault:
            raise Fault("EINVAL", f"{name}: {fault.message}") from None


def names_of_agents(state: Path) -> list[str]:
    """Returns the names that have a record."""
    return [path.stem for path in _paths(state)]


def put(state: Path, record: AgentRecord, home: int | None = None) -> None:
    """Keep the record of a new agent. Raises EEXIST if there is an agent of that name."""
    check(record)
    path = _path(state, names.check_new(record.name), home)
    with os_faults(f"{path} cannot be written"):
        try:
            with no_links.folder(state, path.parent.relative_to(state), 0o700) as folder:
                whole_files.create(folder / path.name, [locked_store.json(record)], 0o600)
        except FileExistsError:
            raise Fault("EEXIST", f"an agent {record.name} exists already; choose another name") from None


def remove(state: Path, name: str, home: int | None = None) -> None:
    path = _path(state, name, home)
    with os_faults(f"{path} cannot be removed"):
        try:
            with no_links.folder(state, path.parent.relative_to(state), 0o700) as folder:
                (folder / path.name).unlink()
                whole_files.sync(folder)
        except FileNotFoundError:
            raise Fault("ENOENT", f"there is no agent {name}; see: ctx agent list") from None


def holders(state: Path, name: str) -> list[int]:
    """Returns the users who have an agent of their own of this name."""
    found = (path.parent.name for path in (state / FOLDER / OWN).glob(f"*/{name}{SUFFIX}"))
    return sorted(int(uid) for uid in found if uid.isdecimal())


def _folder(state: Path, home: int | None) -> Path:
    return state / FOLDER if home is None else state / FOLDER / OWN / str(home)


def _path(state: Path, name: str, home: int | None = None) -> Path:
    return _folder(state, home) / f"{names.check_object('agent', name)}{SUFFIX}"


def _paths(state: Path, home: int | None = None) -> list[Path]:
    entries = _entries(_folder(state, home))
    return [entry for entry in entries if entry.suffix == SUFFIX and not entry.name.startswith(".")]


def _entries(folder: Path) -> list[Path]:
    with os_faults(f"{folder} cannot be read"):
        try:
            return sorted(folder.iterdir())
        except FileNotFoundError:
            return []


def _object(record: AgentRecord, origin: str) -> Object:
    return Object(
        class_="agent",
        name=record.name,
        description=record.description,
        origin=origin,
        registered=record.created,
        extra=_texts(record),
    )


def _texts(record: AgentRecord) -> Mapping[str, str]:
    """Returns the texts of the controls before they are written."""
    about = {"name": record.name, "created": record.created, "description": record.description}
    return {
        **defaults.CONTROLS,
        "owner": str(record.uid),
        "uid": str(record.uid),
        "gid": str(record.gid),
        "meta.json": msgspec.json.encode(about).decode(),
        **record.controls,
    }


def _broken(path: Path, why: str) -> Object:
    """Returns an agent whose record cannot be read. It is in the tree, and may do nothing."""
    status = path.lstat()
    record = AgentRecord(path.stem, status.st_mtime, status.st_uid, status.st_gid)
    return msgspec.structs.replace(_object(record, "agent"), status=f"broken: {why}")
