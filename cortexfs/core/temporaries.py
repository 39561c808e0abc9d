"""Editors' temporary files in a `.d/`: which names are let in, and how much they may hold.

Rules: they live in memory, are private to their `.d/`, belong to who made them, and are bounded in
number and size; a restart forgets them. Whatever name is not in the table below is refused, so a
typing error (`echo low > efort`) fails instead of making a file that nobody reads.
This file must never know inodes or controls' values.
"""

from __future__ import annotations

import re

from cortexfs.core import edits
from cortexfs.core.errors import Fault

MAX_IN_FOLDER = 32
MAX_IN_TREE = 256
MAX_SIZE = 256 << 10  # vim's swap file of a 64 KiB control takes about 140 KiB
MODES = 0o777

# One row a program; {} is the name of a control of that folder.
PATTERNS = (
    r"\.{}\..{{1,64}}",  # rsync and mkstemp (.policy.aB3dE9), vim (.policy.swp), and .policy.tmp-1-2
    r"\.?{}~|{}\.~\d+~",  # backups of vim, install -b, cp --backup
    r"{}\.(bak|orig|rej|tmp|new|old|swp)",  # sed -i.bak, patch, scripts
    r"{}\.[A-Za-z0-9]{{6,10}}",  # mktemp policy.XXXXXX
    r"#{}#|\.#{}",  # emacs
    r"sed[A-Za-z0-9]{{6}}",  # sed -i
    r"\d{{4,5}}",  # vim tries whether it may create files: 4913 and on
    r"\.?tmp[A-Za-z0-9_.-]{{6,32}}|\.goutputstream-[A-Za-z0-9]{{6}}",  # mktemp, Python, GLib
)


def is_temporary(name: str, controls: tuple[str, ...]) -> bool:
    either = "(" + "|".join(map(re.escape, controls)) + ")"
    return any(re.fullmatch(pattern.format(*[either] * 2), name, re.ASCII) for pattern in PATTERNS)


class Temporary:
    """One such file. It behaves as files do: all opens share its bytes, and it outlives its name."""

    __slots__ = ("data", "folder", "gid", "inode", "linked", "mode", "mtime", "name", "uid")

    def __init__(
        self, inode: int, folder: int, name: str, owner: tuple[int, int], mode: int, now: int
    ) -> None:
        self.inode = inode
        self.folder = folder
        self.name = name
        self.uid, self.gid = owner
        self.mode = mode & MODES
        self.mtime = now
        self.linked = True
        self.data = bytearray()

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, patch: bytes, now: int) -> int:
        edits.patched(self.data, offset, patch, MAX_SIZE)
        self.mtime = now
        return len(patch)

    def truncate(self, size: int, now: int) -> None:
        edits.resized(self.data, size, MAX_SIZE)
        self.mtime = now


class Temporaries:
    """All of them, by folder."""

    def __init__(self) -> None:
        self._folders: dict[int, dict[str, Temporary]] = {}

    def find(self, folder: int, name: str) -> Temporary | None:
        return self._folders.get(folder, {}).get(name)

    def names(self, folder: int) -> list[tuple[str, int]]:
        return [(name, temporary.inode) for name, temporary in self._folders.get(folder, {}).items()]

    def check_room(self, folder: int) -> None:
        here = len(self._folders.get(folder, {}))
        if here >= MAX_IN_FOLDER or sum(map(len, self._folders.values())) >= MAX_IN_TREE:
            raise Fault("ENOSPC", f"too many temporary files in .d/ folders, {here} in this one; remove some")

    def add(self, temporary: Temporary) -> None:
        self._folders.setdefault(temporary.folder, {})[temporary.name] = temporary

    def remove(self, temporary: Temporary) -> None:
        del self._folders[temporary.folder][temporary.name]
        temporary.linked = False

    def remove_all(self, folder: int) -> None:
        """The folder went; whoever edits in it could not even clean up after himself."""
        for temporary in list(self._folders.pop(folder, {}).values()):
            temporary.linked = False

    def rename(self, temporary: Temporary, name: str) -> None:
        """A file of that name, if any, loses it."""
        if replaced := self.find(temporary.folder, name):
            self.remove(replaced)
        del self._folders[temporary.folder][temporary.name]
        temporary.name = name
        self.add(temporary)
