"""Editors' temporary files in a `.d/`: which names are let in, and how much they may hold.

Rules: they live in memory, are private to their `.d/`, belong to who made them, and are bounded in
number and size; a restart forgets them. Whatever name is not in the table below is refused, so a
typing error (`echo low > efort`) fails instead of making a file that nobody reads.
This file must never know inodes or controls' values.
"""

from __future__ import annotations

import re
from collections import Counter

from cortexfs.core.errors import Fault
from cortexfs.core.tree import edits

MAX_IN_FOLDER = 32
MAX_IN_TREE = 256
MAX_OF_HOME = 16  # in what a user has made himself, those counted that are open and have no name
MAX_IN_HOMES = 256
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

    __slots__ = ("data", "folder", "gid", "home", "inode", "linked", "mode", "mtime", "name", "uid")

    def __init__(
        self,
        inode: int,
        folder: int,
        name: str,
        owner: tuple[int, int],
        mode: int,
        now: int,
        home: int | None = None,
    ) -> None:
        self.inode = inode
        self.folder = folder
        self.name = name
        self.uid, self.gid = owner
        self.mode = mode & MODES
        self.mtime = now
        self.linked = True
        self.home = home  # in which it is
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
        self._in_homes: Counter[int] = Counter()

    def find(self, folder: int, name: str) -> Temporary | None:
        return self._folders.get(folder, {}).get(name)

    def names(self, folder: int) -> list[tuple[str, int]]:
        return [(name, temporary.inode) for name, temporary in self._folders.get(folder, {}).items()]

    def check_room(self, folder: int, home: int | None = None) -> None:
        here = len(self._folders.get(folder, {}))
        if here >= MAX_IN_FOLDER or (home is None and self._of_owner() >= MAX_IN_TREE):
            raise Fault("ENOSPC", f"too many temporary files in .d/ folders, {here} in this one; remove some")

    def _of_owner(self) -> int:
        """How many are not in homes, whose users are not to take the owner's share."""
        return sum(len(some) for some in self._folders.values() if next(iter(some.values())).home is None)

    def check_share(self, home: int) -> None:
        """Checks that there may be one more of a user's."""
        if self._in_homes[home] >= MAX_OF_HOME or self._in_homes.total() >= MAX_IN_HOMES:
            why = f"uid {home} has {self._in_homes[home]} temporary files in .d/ folders"
            raise Fault("ENOSPC", f"{why}; remove some, or close those that were removed")

    def add(self, temporary: Temporary) -> None:
        if temporary.home is not None:
            self._in_homes[temporary.home] += 1
        self._put(temporary)

    def forget(self, temporary: Temporary) -> None:
        """Nobody has it open, and it has no name."""
        if temporary.home is not None:
            self._in_homes[temporary.home] -= 1
            self._in_homes += Counter()  # without those that have none

    def _put(self, temporary: Temporary) -> None:
        self._folders.setdefault(temporary.folder, {})[temporary.name] = temporary

    def remove(self, temporary: Temporary) -> None:
        self._take(temporary)
        temporary.linked = False

    def _take(self, temporary: Temporary) -> None:
        here = self._folders[temporary.folder]
        del here[temporary.name]
        if not here:
            del self._folders[temporary.folder]

    def remove_all(self, folder: int) -> None:
        """The folder went; whoever edits in it could not even clean up after himself."""
        for temporary in list(self._folders.pop(folder, {}).values()):
            temporary.linked = False

    def rename(self, temporary: Temporary, name: str) -> None:
        """A file of that name, if any, loses it."""
        if replaced := self.find(temporary.folder, name):
            self.remove(replaced)
        self._take(temporary)
        temporary.name = name
        self._put(temporary)
