"""This machine's own entries of the directory: its token, and each exported object, as the mount shows it.

Rules: an object is read again when its executable or the list of exports has changed. An object that is
missing is not exported. Each entry is signed, and is sent once for each change.
This file must never know who may call an export.
"""

from __future__ import annotations

import logging
import os
import secrets
from functools import partial
from pathlib import Path

import msgspec
import trio

from cortexfs.core import hostcalls, registry
from cortexfs.core.errors import Fault
from cortexfs.core.policy.risk import effects_of
from cortexfs.team import keys, messages, subjects
from cortexfs.team.directory import INCARNATION, TOKEN, Directory
from cortexfs.team.mapping import Mapping
from cortexfs.team.messages import MAX_ENTRY, RemoteObject
from cortexfs.team.nats_client import Client

LOOK_SECONDS = 1.0
_DESCRIPTION = "# cortexfs.description="

log = logging.getLogger("cortexfs")

_pack = msgspec.msgpack.Encoder().encode


class Exporting:
    def __init__(self, root: str, mapping: Mapping, client: Client) -> None:
        self._root = Path(root)
        self._machine = client.name
        self._mapping = mapping
        self._client = client
        self.incarnation = secrets.token_bytes(16)
        self._times: dict[str, int] = {}  # the time of its last change, by path
        self._entries: dict[str, RemoteObject] = {}  # by subject
        self._wanted: set[str] = set()  # the subjects of all exports, also of those that are missing now
        self.problems: dict[str, str] = {}  # by path

    async def run(self, directory: Directory, token: str) -> None:
        """Send changed entries, for ever. Call it anew for each connection."""
        again = trio.Event()
        again.set()
        stale = {
            subject for subject, object_ in directory.objects.items() if object_.machine == self._machine
        }
        while True:
            if again.is_set():
                again = trio.Event()
                directory.disturbed = again.set
                self._times, self._entries = {}, {}
                await self.introduce(directory, token)
            full: list[str] = []
            now = await trio.to_thread.run_sync(self._look, abandon_on_cancel=True)
            former = directory.former - self._wanted
            directory.former -= former
            if directory.problem:  # a copy's, which would enter them again at once, and so on
                former = set()
            gone = (stale | former | {*self._entries}) - {*now}
            for subject in gone:
                await self._say(directory, subject, b"")
            for subject, object_ in now.items():
                if self._entries.get(subject) != object_:
                    try:
                        await self._say(directory, subject, _pack(object_))
                    except Fault as fault:
                        if fault.code != "ENOSPC":
                            raise
                        full.append(subject)  # the other entries are sent in any case
                        self.problems[f"{object_.class_}/{object_.name}"] = fault.message
            self._entries, stale = {each: object_ for each, object_ in now.items() if each not in full}, set()
            await trio.sleep(LOOK_SECONDS)

    async def introduce(self, directory: Directory, token: str) -> None:
        """Send the token, and the incarnation of this link: calls are for it, so the next link takes none."""
        subject = subjects.entry(self._machine, *TOKEN)
        directory.own[subject] = token.encode()
        await self._client.stored(subject, directory.own[subject])
        await self._say(directory, subjects.entry(self._machine, *INCARNATION), self.incarnation)

    async def _say(self, directory: Directory, subject: str, data: bytes) -> None:
        directory.own[subject] = keys.seal(self._client.key, subject, data, directory.next_time(subject))
        await self._client.stored(subject, directory.own[subject])

    def _look(self) -> dict[str, RemoteObject]:
        """Returns the present exports, by subject. Call it in a thread, as the mount is a file system."""
        objects: dict[str, RemoteObject] = {}
        self.problems, self._wanted = {}, set()
        paths: list[str] = []
        try:
            paths = list(dict.fromkeys(each.object for each in self._mapping.exports))
            _ = self._mapping.rows
        except Fault as fault:
            self.problems["exports"] = fault.message
        for path in paths:
            class_, name = registry.key_of(path)
            subject = subjects.entry(self._machine, class_, name)
            self._wanted.add(subject)
            try:
                changed = _changed(self._root / path)
                if self._times.get(path) != changed or subject not in self._entries:
                    objects[subject] = exported(self._root, path, self._machine)
                    self._times[path] = changed
                else:
                    objects[subject] = self._entries[subject]
            except OSError as problem:
                self.problems[path] = problem.strerror or str(problem)
            except Fault as fault:
                self.problems[path] = fault.message
        return objects


def _changed(executable: Path) -> int:
    """Returns the time when the object, or the model of an agent, last changed."""
    model = executable.with_name(f"{executable.name}.d") / "model"
    own = model.stat().st_mtime_ns if model.exists() else 0
    return max(executable.stat().st_mtime_ns, own)


def _control(executable: Path, name: str) -> str:
    """Returns the text of a control; empty if there is no such control."""
    file = executable.with_name(f"{executable.name}.d") / name
    return file.read_text(errors="replace").rstrip("\n") if file.exists() else ""


def check_no_alias(root: Path, path: str) -> None:
    if (root / path).is_symlink():
        object_ = os.path.relpath((root / path).resolve(), root.resolve())
        raise Fault("EINVAL", f"{path} is an alias; export what it stands for: {object_}")


def exported(root: Path, path: str, machine: str) -> RemoteObject:
    """Returns an object as other machines see it. Raises a Fault if it cannot be exported."""
    check_no_alias(root, path)
    class_, name = registry.key_of(path)
    messages.shown_name(class_, name, machine)
    control = partial(_control, root / path)
    flags = control("cap").split()
    capabilities = hostcalls.Capabilities(
        "emits_progress" in flags,
        "emits_observer_text" in flags,
        "background_safe" in flags,
        effects_of(control("effects")),
    )
    is_tool = class_ == "tool"
    if class_ == "agent":
        model = control("model")
        extra = {"cap": _control((root / "model" / model).resolve(), "cap") if model else ""}
    else:
        extra = {} if is_tool else {row: control(row) for row in ("cap", "limit")}
    timeout = control("timeout") if is_tool else ""
    object_ = RemoteObject(
        machine=machine,
        class_=class_,
        name=name,
        description=control("description") if is_tool else _described(root / path),
        schema=control("schema").encode() if is_tool else b"{}",
        capabilities=capabilities if is_tool else hostcalls.Capabilities(),
        timeout=float(timeout) if timeout else None,
        dry_run_flag="dry_run_flag" in flags,
        extra=extra,
    )
    if len(_pack(object_)) > MAX_ENTRY:
        raise Fault("EMSGSIZE", f"its description and schema are over {MAX_ENTRY >> 10} KiB")
    return object_


def _described(executable: Path) -> str:
    lines = executable.read_text(errors="replace").splitlines()
    found = [line.removeprefix(_DESCRIPTION) for line in lines if line.startswith(_DESCRIPTION)]
    return found[0] if found else ""
