"""The places of the tree: which inode is what.

    inode = block << 6 | slot

Block 0 is the fixed part, one row each in FIXED. Every object, provider, home and alias has a block of its
own. A counter gives it once and never to another path, so that inodes are stable for the life of the mount; a
control file's inode follows from its object's, so that nothing is held for it.
This file must never know what is registered or written; that is core/tree/tree.py.
"""

from __future__ import annotations

import stat
from enum import IntEnum
from typing import NamedTuple

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key, Object
from cortexfs.core.tree.controls import CONTROLS, Control

BITS = 6
SLOT = (1 << BITS) - 1
EXECUTABLE, SOCKET, FOLDER, CONTROL = 0, 1, 2, 8  # slots of an object; controls count from CONTROL
VEILED = SLOT  # the log, to everybody but its owner: how long it is and when it grew would tell of runs
SUFFIXES = {EXECUTABLE: "", SOCKET: ".sock", FOLDER: ".d"}

ROOT, STATUS, BIN, MODEL, AGENT, TOOL, HOME, SHARED, MAIN, RUN_SOCKET = range(1, 11)
COMMANDS, OBJECTS, OWN, TEXTS, ALLOWED, CONFINED, EVENTS = range(11, 18)  # in no listing
FIRST_PROGRAM = 32  # slots of the links in bin/
MAX_ALIASES = 1_000  # in one folder
MAX_ALIASES_IN_TREE = 50_000  # a user namespace can be 65,536 users, each with three folders
MAX_TARGET = 1023  # bytes; all targets are in memory, and users may make many aliases

_DIRECTORY = stat.S_IFDIR | 0o755
# inode: (parent, name, mode). All that is always there.
FIXED = {
    ROOT: (ROOT, "", _DIRECTORY),
    STATUS: (ROOT, "status", stat.S_IFREG | 0o444),
    BIN: (ROOT, "bin", _DIRECTORY),
    MODEL: (ROOT, "model", _DIRECTORY),
    AGENT: (ROOT, "agent", _DIRECTORY),
    TOOL: (ROOT, "tool", _DIRECTORY),
    HOME: (ROOT, "home", _DIRECTORY),
    SHARED: (ROOT, "shared", _DIRECTORY),
    MAIN: (SHARED, "main", _DIRECTORY),
    RUN_SOCKET: (ROOT, ".run.sock", stat.S_IFSOCK | 0o777),
    COMMANDS: (ROOT, ".commands", stat.S_IFREG | 0o444),
    OBJECTS: (ROOT, ".objects", stat.S_IFREG | 0o444),
    OWN: (ROOT, ".own", stat.S_IFREG | 0o444),  # what users say about providers of theirs goes to it
    TEXTS: (ROOT, ".texts", stat.S_IFREG | 0o444),
    CONFINED: (ROOT, ".confined", stat.S_IFREG | 0o444),  # run, it is a shell for scripts of clients
    ALLOWED: (ROOT, ".allowed", stat.S_IFREG | 0o444),  # run, it tells the tools that its caller may run
    EVENTS: (ROOT, ".events", stat.S_IFREG | 0o444),  # run, it tells the newest events of its caller
}
_HIDDEN = (COMMANDS, OBJECTS, OWN, TEXTS, ALLOWED, CONFINED, EVENTS)
UNLISTED = {FIXED[inode][1]: inode for inode in _HIDDEN}  # in the root
CLASS_FOLDERS = {MODEL: "model", AGENT: "agent", TOOL: "tool"}
HOME_SLOTS = {"model": 1, "agent": 2, "tool": 3}
HOME_CLASSES = {at: class_ for class_, at in HOME_SLOTS.items()}


class Keep(IntEnum):
    """How long the kernel may remember."""

    ALWAYS = 0  # entry, attributes and pages, until told otherwise
    ENTRY = 1  # attributes are asked for each time
    NOTHING = 2  # a rename may move the kernel's entry, so entries are asked for too
    FOLDER = 3  # the entry always; only times change, which may be a second old
    PASSING = 4  # the same, but it may go without the kernel's doing


# Of what is always there, and not kept for good.
ASKED = {**dict.fromkeys((STATUS, *_HIDDEN), Keep.ENTRY), HOME: Keep.FOLDER}


class Attributes(NamedTuple):
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int  # nanoseconds since the epoch, as everywhere in the tree
    keep: Keep
    links: int = 1  # of a directory too: "unknown", so that find looks into all of them


class OfObject(msgspec.Struct, frozen=True, gc=False):
    key: Key
    folder: int
    leaf: str


class ProviderNode(msgspec.Struct, frozen=True, gc=False):
    name: str  # of somebody's own, home/1000/mine


class Home(msgspec.Struct, frozen=True, gc=False):
    uid: int
    gid: int
    since: int


class Alias(msgspec.Struct, gc=False):
    inode: int
    folder: int
    name: str
    target: bytes
    owner: tuple[int, int]
    mtime: int


def block(inode: int) -> int:
    return inode >> BITS


def base(inode: int) -> int:
    return inode & ~SLOT


def slot(inode: int) -> int:
    return inode & SLOT


def control_at(class_: str, inode: int) -> Control | None:
    """The row of the control file whose inode this is."""
    row = slot(inode) - CONTROL
    return CONTROLS[class_][row] if 0 <= row < len(CONTROLS[class_]) else None


def control_slot(class_: str, name: str) -> int | None:
    for row, control in enumerate(CONTROLS[class_]):
        if control.name == name:
            return CONTROL + row
    return None


def leaf_and_slot(name: str) -> tuple[str, int]:
    """`fs.read.d` is the folder of fs.read; an object's own name never ends so (abi.md 2.1)."""
    for wanted in (FOLDER, SOCKET):
        if name.endswith(SUFFIXES[wanted]):
            return name.removesuffix(SUFFIXES[wanted]), wanted
    return name, EXECUTABLE


def uid_of(name: str) -> int:
    """The user whose home has this name: canonical decimal, below the id that means nobody."""
    if not (name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < 0xFFFFFFFF):
        raise Fault("EINVAL", f"{name!r} is not a user id; homes are named by number, as in home/1000")
    return int(name)


def check_alias(name: str, target: bytes) -> None:
    names.check(name)
    if not 0 < len(target) <= MAX_TARGET:
        raise Fault("EINVAL", f"a link's target has 1 to {MAX_TARGET} bytes")


def has_socket(object_: Object) -> bool:
    """Agents always talk; models where .d/session says so; tools never (abi.md 1.6)."""
    return object_.class_ == "agent" or object_.extra.get("session") == "socket"


class Stale(NamedTuple):
    """Names and inodes that the kernel must forget after a change."""

    entries: list[tuple[int, str]]
    inodes: list[int]
