"""The place of a session on disk, and the files beside its log, which are made from it.

    <root>/<space>/<class>/<object>.d/session/<s>/events.jsonl      the log: the only copy
                                                  messages.jsonl    its messages, one a line
                                                  latest.md         the last answer's text
                                                  state             idle, active, done, error, cancelled
                                                  cwd created_at updated_at meta.json
                                                  .checkpoint       of a long log (checkpoint.py)
                                      session/index/list            names, newest first
                                                    current         the newest one's name
                                                    by-cwd/<hash>   the session last used in a directory

Rules: all files but events.jsonl (and the moment in created_at) can be deleted and come back from the log.
messages.jsonl grows, the others are replaced as a whole. Folders are 0700 and files 0600, and all are the
daemon's. These calls block: they belong in a thread, one at a time.
This file must never know tasks or who reads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cortexfs.core import frames, names
from cortexfs.core.errors import Fault
from cortexfs.core.names import INDEX
from cortexfs.sessions import disk
from cortexfs.sessions.log_facts import MESSAGE, LogFacts
from cortexfs.state import whole_files

EVENTS = "events.jsonl"
MESSAGES = "messages.jsonl"


class Space(msgspec.Struct, frozen=True):
    """The owner of sessions: a folder under the root, such as home/1000 or shared/main, and its user. On
    disk, all of it is the daemon's."""

    folder: str
    uid: int

    def __post_init__(self) -> None:
        for part in self.folder.split("/"):
            names.check(part)

    @staticmethod
    def private(uid: int) -> Space:
        """Returns the space of a user's own sessions."""
        return Space(f"home/{uid}", uid)

    @staticmethod
    @functools.cache
    def shared() -> Space:
        """Returns the space of the sessions that all users share, which the daemon keeps."""
        return Space("shared/main", os.geteuid())


class Address(msgspec.Struct, frozen=True):
    space: Space
    class_: str
    object: str
    session: str

    def __post_init__(self) -> None:
        names.check_object(self.class_, self.object)
        if names.check(self.session) == INDEX:
            raise Fault("EINVAL", "no session can be named index, as a folder has that name; choose another")

    @property
    def parts(self) -> tuple[str, ...]:
        return (*object_parts(self.space, self.class_, self.object), self.session)


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, rename={"class_": "class"}):
    session: str
    class_: str
    object: str
    space: str
    created_at: str
    updated_at: str
    state: str
    cwd: str
    runs: int
    messages: int
    last: str | None  # id of the last event
    bytes: int  # of the log that are in the other files
    machine: str | None = None  # the machine of a team that has the session


class Info(msgspec.Struct, frozen=True):
    address: Address
    state: str
    updated: float
    size: int


class DerivedFacts(msgspec.Struct, frozen=True):
    size: int
    state: str
    cwd: str | None
    runs: int
    messages: int
    last: int
    latest: tuple[tuple[int, int], ...]
    machine: str | None = None

    @staticmethod
    def of(facts: LogFacts, size: int, state: str) -> DerivedFacts:
        latest = tuple((at, length) for at, length in facts.latest if at + length <= size)
        return DerivedFacts(
            size, state, facts.cwd, facts.runs, facts.messages, facts.last, latest, facts.machine
        )


def object_parts(space: Space, class_: str, object: str) -> tuple[str, ...]:
    return (*space.folder.split("/"), class_, *f"{object}.d".split("/"), "session")


def when(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def text(path: Path) -> str:
    try:
        return path.read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return ""


def renamed(folder: Path, name: str) -> None:
    """Write a session's new name into the file that has it."""
    path = folder / "meta.json"
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        meta = msgspec.json.decode(path.read_bytes(), type=Meta)
        disk.replace(path, [msgspec.json.encode(msgspec.structs.replace(meta, session=name)), b"\n"])


def derived(folder: Path) -> int:
    """Returns the number of the log's bytes that are in the other files, as meta.json has it."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / "meta.json").read_bytes(), type=Meta).bytes
    return 0


def derive(folder: Path, address: Address, log: int, start: int, facts: DerivedFacts) -> None:
    """Bring the files in `folder` up to date with `log`, a descriptor; they have `start` bytes of it."""
    _derive_messages(folder / MESSAGES, log, start, facts.size)
    created, updated = _created(folder), when(os.fstat(log).st_mtime)
    cwd, last = facts.cwd or "/", str(facts.last) if facts.last else None
    values = {"state": facts.state, "updated_at": updated, "cwd": cwd}
    for name, value in values.items():
        if text(folder / name) != value:  # to replace a file makes ext4 write it out
            disk.replace(folder / name, [value.encode() + b"\n"])
    if not start or (facts.latest and facts.latest[-1][0] >= start):
        disk.replace(folder / "latest.md", _latest(log, facts.latest))
    place = (address.session, address.class_, address.object, address.space.folder)
    meta = Meta(
        *place,
        created,
        updated,
        facts.state,
        cwd,
        facts.runs,
        facts.messages,
        last,
        facts.size,
        facts.machine,
    )
    disk.replace(folder / "meta.json", [msgspec.json.encode(meta) + b"\n"])


def _derive_messages(path: Path, log: int, start: int, end: int) -> None:
    if not start or not path.exists():
        disk.replace(path, _messages(log, 0, end))
        return
    with open(path, "ab", buffering=0, opener=whole_files.private) as file:
        for piece in _messages(log, start, end):
            file.write(piece)


def _messages(log: int, start: int, end: int) -> Iterator[bytes]:
    """Yields the message frames between two offsets, without their type."""
    size = disk.PIECE + frames.MAX_LINE  # so there is a whole line in every piece
    while start < end:
        data = os.pread(log, min(size, end - start), start)
        cut = data.rfind(b"\n") + 1
        if not cut:
            return
        found = [b"{" + line[len(MESSAGE) :] for line in data[:cut].split(b"\n") if line.startswith(MESSAGE)]
        if found:
            yield b"\n".join([*found, b""])
        start += cut


def _latest(log: int, parts: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    end = b"\n"
    for offset, length in parts:
        for piece in _texts(os.pread(log, length, offset)):
            end = piece[-1:] or end
            yield piece
    if end != b"\n":
        yield b"\n"


def _texts(line: bytes) -> list[bytes]:
    """Returns the texts of a message, or none for a message that only other programs understand."""
    with contextlib.suppress(msgspec.MsgspecError):
        frame = frames.decode(line)
        if isinstance(frame, frames.Message):
            return [content.text.encode(errors="replace") for content in frame.content]
    return []


def _created(folder: Path) -> str:
    """Returns the time of the session's beginning: the noted one, else that of its oldest file."""
    path = folder / "created_at"
    if not (created := text(path)):
        created = when(min(entry.lstat().st_mtime for entry in folder.iterdir()))
        disk.replace(path, [created.encode() + b"\n"])
    return created


def listing(root: Path, space: Space, class_: str, object: str) -> list[Info]:
    """Returns an object's sessions, newest first."""
    folder = root.joinpath(*object_parts(space, class_, object))
    found: list[Info] = []
    for name in session_names(folder):
        with contextlib.suppress(OSError, Fault):  # a session that is being removed, or none of ours
            address = Address(space, class_, object, name)
            stat = os.stat(folder / name / EVENTS)
            found.append(Info(address, text(folder / name / "state") or "idle", stat.st_mtime, stat.st_size))
    return sorted(found, key=lambda info: (-info.updated, info.address.session))


def by_use(folder: Path) -> list[str]:
    """Returns the names of an object's sessions, the last used at the end."""
    found: list[tuple[float, str]] = []
    for name in session_names(folder):
        with contextlib.suppress(OSError):
            found.append((os.stat(f"{folder}/{name}/{EVENTS}").st_mtime, name))
    newest = sorted(found, key=lambda entry: (-entry[0], entry[1]))
    return [name for _, name in reversed(newest)]


def objects(root: Path, space: Space) -> list[tuple[str, str]]:
    """Returns the class and name of each object that has a folder of sessions in a space."""
    base = root / space.folder
    found = []
    for class_ in names.CLASSES:
        depth = "*/*.d" if class_ == "model" else "*.d"
        for folder in sorted((base / class_).glob(f"{depth}/session")):
            found.append((class_, str(folder.parent.relative_to(base / class_))[: -len(".d")]))
    return found


def spaces(root: Path) -> list[Space]:
    shared = [Space.shared()] if session_names(root / "shared" / "main") else []
    homes = [name for name in session_names(root / "home") if name.isascii() and name.isdecimal()]
    return shared + [Space.private(int(name)) for name in homes]


def session_names(folder: Path) -> list[str]:
    """Returns the names in an object's folder of sessions, without the index and half-made folders."""
    try:
        return [name for name in os.listdir(folder) if name != INDEX and not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


class Marks:
    """The sessions that were written to since all were on disk, for a daemon that starts after a crash."""

    def __init__(self, root: Path) -> None:
        self.path = root / "unclean.jsonl"
        self.marked: set[Address] = set()

    def load(self) -> list[Address]:
        """Load the marks that the last daemon left, as far as they can be read."""
        found: dict[Address, None] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self.path.read_bytes().split(b"\n"):
                with contextlib.suppress(msgspec.MsgspecError, Fault):
                    found[msgspec.json.decode(line, type=Address)] = None
        self.marked = set(found)
        return list(found)

    def add(self, address: Address) -> bool:
        """Mark a session that is about to be written to. Returns True if the mark is new."""
        if address in self.marked:
            return False
        with open(self.path, "ab", buffering=0, opener=whole_files.private) as file:
            # A newline first: a line that a crash cut short must not spoil the next one.
            file.write(b"\n" + msgspec.json.encode(address) + b"\n")
        self.marked.add(address)
        return True

    def clear(self, addresses: list[Address]) -> None:
        """Clear all marks but those of these sessions, which are not on disk."""
        if addresses:
            lines = [msgspec.json.encode(address) + b"\n" for address in addresses]
            disk.replace(self.path, lines)
        else:
            self.path.unlink(missing_ok=True)
        self.marked = set(addresses)
