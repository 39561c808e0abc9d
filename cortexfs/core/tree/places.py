"""The places of the tree: the meaning of each inode.

    inode = block << 6 | slot

Block 0 is the fixed part, with a row in FIXED for each inode. Every object, provider, home and alias has a
block of its own. A counter assigns it once, and never to another path. So inodes are stable for the life of
the mount. A control file's inode follows from that of its object, and takes no memory.
This file must never know what is registered or written; core/tree/tree.py knows that.
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
VEILED = SLOT  # the log for all users but its owner, as its size and times would tell of runs
SUFFIXES = {EXECUTABLE: "", SOCKET: ".sock", FOLDER: ".d"}

ROOT, STATUS, BIN, MODEL, AGENT, TOOL, HOME, SHARED, MAIN, RUN_SOCKET = range(1, 11)
COMMANDS, OBJECTS, OWN, TEXTS, ALLOWED, CONFINED, EVENTS, BIND = range(11, 19)  # hidden from listings
FIRST_PROGRAM = 32  # slots of the links in bin/
MAX_ALIASES = 1_000  # in one folder
MAX_ALIASES_IN_TREE = 50_000  # a user namespace can have 65,536 users, each with three folders
MAX_TARGET = 1023  # bytes; limited, as all targets are in memory, and users may make many aliases

# The types and permissions of the files in the tree, as st_mode of stat(2).
READ_ONLY_MODE = stat.S_IFREG | 0o444
LOG_MODE = stat.S_IFREG | 0o600
WRITABLE_MODE = stat.S_IFREG | 0o644
PROGRAM_MODE = stat.S_IFREG | 0o555
SOCKET_MODE = stat.S_IFSOCK | 0o666
OWN_SOCKET_MODE = stat.S_IFSOCK | 0o600
LINK_MODE = stat.S_IFLNK | 0o777
FOLDER_MODE = stat.S_IFDIR | 0o755
PRIVATE_MODE = stat.S_IFDIR | 0o700
# inode: (parent, name, mode), for the files that always exist.
FIXED = {
    ROOT: (ROOT, "", FOLDER_MODE),
    STATUS: (ROOT, "status", READ_ONLY_MODE),
    BIN: (ROOT, "bin", FOLDER_MODE),
    MODEL: (ROOT, "model", FOLDER_MODE),
    AGENT: (ROOT, "agent", FOLDER_MODE),
    TOOL: (ROOT, "tool", FOLDER_MODE),
    HOME: (ROOT, "home", FOLDER_MODE),
    SHARED: (ROOT, "shared", FOLDER_MODE),
    MAIN: (SHARED, "main", FOLDER_MODE),
    RUN_SOCKET: (ROOT, ".run.sock", stat.S_IFSOCK | 0o777),
    COMMANDS: (ROOT, ".commands", READ_ONLY_MODE),
    OBJECTS: (ROOT, ".objects", READ_ONLY_MODE),
    OWN: (ROOT, ".own", READ_ONLY_MODE),  # takes commands of users about their own providers
    TEXTS: (ROOT, ".texts", READ_ONLY_MODE),
    CONFINED: (ROOT, ".confined", READ_ONLY_MODE),  # if run, a shell for scripts of clients
    ALLOWED: (ROOT, ".allowed", READ_ONLY_MODE),  # if run, lists the tools that its caller may run
    EVENTS: (ROOT, ".events", READ_ONLY_MODE),  # if run, lists the newest events of its caller
    BIND: (ROOT, ".bind", PRIVATE_MODE),  # where sockets are bound (tree/socket_binding.py)
}
_HIDDEN = (COMMANDS, OBJECTS, OWN, TEXTS, ALLOWED, CONFINED, EVENTS)
UNLISTED = {FIXED[inode][1]: inode for inode in (*_HIDDEN, BIND)}  # in the root
CLASS_FOLDERS = {MODEL: "model", AGENT: "agent", TOOL: "tool"}
HOME_SLOTS = {"model": 1, "agent": 2, "tool": 3}
HOME_CLASSES = {at: class_ for class_, at in HOME_SLOTS.items()}


class Keep(IntEnum):
    """The parts of a file that the kernel may cache."""

    ALWAYS = 0  # entry, attributes and pages, until they are invalidated
    ENTRY = 1  # the entry alone; the kernel asks for attributes each time
    NOTHING = 2  # nothing, as a rename may move the kernel's entry
    FOLDER = 3  # the entry, and for a second the attributes, of which only times change
    PASSING = 4  # for a second the attributes; no entry, as the kernel may not know of its removal
    LISTED = 5  # like PASSING, but the entry too until `ls -l`, which has just read it, asks about it


# The files of FIXED that the kernel must not cache as ALWAYS.
ASKED = {**dict.fromkeys((STATUS, *_HIDDEN), Keep.ENTRY), HOME: Keep.FOLDER}


class Attributes(NamedTuple):
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int  # nanoseconds since the epoch, as everywhere in the tree
    keep: Keep
    links: int = 1  # for directories it means "unknown", so that find(1) looks into all of them


class OfObject(msgspec.Struct, frozen=True, gc=False):
    key: Key
    folder: int
    leaf: str


class ProviderNode(msgspec.Struct, frozen=True, gc=False):
    name: str  # in a home, home/1000/mine


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
    """Returns the row of the control file with this inode, or None."""
    row = slot(inode) - CONTROL
    return CONTROLS[class_][row] if 0 <= row < len(CONTROLS[class_]) else None


def control_slot(class_: str, name: str) -> int | None:
    for row, control in enumerate(CONTROLS[class_]):
        if control.name == name:
            return CONTROL + row
    return None


def leaf_and_slot(name: str) -> tuple[str, int]:
    """Returns object and slot of a name: `fs.read.d` is the folder of fs.read. No object's name ends in such
    a suffix (abi.md 2.1)."""
    for each in (FOLDER, SOCKET):
        if name.endswith(SUFFIXES[each]):
            return name.removesuffix(SUFFIXES[each]), each
    return name, EXECUTABLE


def uid_of(name: str) -> int:
    """Returns the user whose home has this name: canonical decimal, below the id that means no user."""
    if not (name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < 0xFFFFFFFF):
        raise Fault("EINVAL", f"{name!r} is not a user id; homes are named by number, as in home/1000")
    return int(name)


def check_alias(name: str, target: bytes) -> None:
    names.check(name)
    if not 0 < len(target) <= MAX_TARGET:
        raise Fault("EINVAL", f"a link's target has 1 to {MAX_TARGET} bytes")


def has_socket(object_: Object) -> bool:
    """Returns True for agents, and for models with "socket" in .d/session; never for tools (abi.md 1.6)."""
    return object_.class_ == "agent" or object_.extra.get("session") == "socket"


class Stale(NamedTuple):
    """Names and inodes that the kernel must forget after a change."""

    entries: list[tuple[int, str]]
    inodes: list[int]
