"""Writes into a `.d/`: one open of a writable control, and editors' temporary files beside it.

    Edit(value, ...)  ->  write, truncate  ->  pending() -> judged bytes or None  ->  put_back() if need be

Rules (abi.md 3): each open has a buffer of its own, so a half-written value never counts. A write that ends
in a newline is judged at once if it appends, or is at offset 0 of a truncated open. So `echo bad > effort`
and `echo bad >> policy` fail in echo, as shells ignore what close(2) says. A refusal there spoils the open,
and so does a disk that cannot take the draft. `pending` judges the whole value again. An open that wrote
nothing changes nothing. Temporary files live in memory, are private to their `.d/`, and belong to their
maker. Their number and size are bounded, and a restart forgets them. A name that fits no row of PATTERNS is
refused. So a typing error (`echo low > efort`) fails, instead of making a useless file.
This file must never know inodes, handles or disks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.tree.controls import MAX_VALUE

Judge: TypeAlias = Callable[[bytes], bytes]


def patched(data: bytearray, offset: int, patch: bytes, limit: int) -> None:
    """Does what pwrite(2) does, up to `limit` bytes; a hole reads as zeroes."""
    if offset + len(patch) > limit:
        raise Fault("EFBIG", f"this file holds at most {limit >> 10} KiB")
    data.extend(bytes(max(offset - len(data), 0)))
    data[offset : offset + len(patch)] = patch


def resized(data: bytearray, size: int, limit: int) -> None:
    """Does what ftruncate(2) does, up to `limit` bytes."""
    if size > limit:
        raise Fault("EFBIG", f"this file holds at most {limit >> 10} KiB")
    del data[size:]
    data.extend(bytes(size - len(data)))


class Edit:
    def __init__(self, value: bytes, judge: Judge, *, truncated: bool, appending: bool) -> None:
        self._data = bytearray() if truncated else bytearray(value)
        self._value = value
        self._judge = judge
        self._truncated = truncated
        self._appending = appending
        self.written = False  # whether there are changes that `pending` has not returned
        self._spoiled: Fault | None = None
        self._refusal: Fault | None = None  # the fault of the buffer's content
        self._judged: bytes | None = None  # the judged value of the buffer's content

    def read(self, offset: int, size: int) -> bytes:
        """Returns the bytes that this open has written, or else the value at the time of the open."""
        data = self._data if self.written or self._truncated else self._value
        return bytes(data[offset : offset + size])

    def write(self, offset: int, patch: bytes) -> int:
        """Write, and raise the fault of the value if it is judged at once."""
        # The kernel may know an older end than that of our buffer, so O_APPEND is handled here.
        start = len(self._data) if self._appending else offset
        is_whole = self._appending or (self._truncated and offset == 0)
        at_once = is_whole and patch.endswith(b"\n")
        self._change(lambda: patched(self._data, start, patch, MAX_VALUE), at_once)
        return len(patch)

    def truncate(self, size: int) -> None:
        self._change(lambda: resized(self._data, size, MAX_VALUE), at_once=False)

    def _change(self, change: Callable[[], None], at_once: bool) -> None:
        """Make a change. If it fails, this open is spoiled, as the rest of a value must not count alone."""
        if self._spoiled:
            raise self._spoiled
        try:
            change()
            self.written = True
            self._refusal = self._judged = None
            if at_once:
                self._judged = self._judge(bytes(self._data))
        except Fault as fault:
            self.spoil(fault)
            raise

    def spoil(self, fault: Fault) -> None:
        """Make this open change nothing any more, as a part of the value is lost."""
        self._spoiled = Fault(fault.code, fault.message)
        self.written = True

    def draft(self) -> bytes:
        """Returns the bytes that the disk must have before the write returns: the value as far as written."""
        return bytes(self._data) if self._judged is None else self._judged

    def pending(self) -> bytes | None:
        """Returns the judged value, or None if nothing was written since the last call.

        After a refusal, the same fault is raised again, without judging, until something else is written.
        """
        if not self.written:
            return None
        if refusal := self._spoiled or self._refusal:
            raise refusal
        try:
            value = self._judge(bytes(self._data))
        except Fault as fault:
            self._refusal = Fault(fault.code, fault.message)
            raise
        self.written = False
        self._truncated = False
        self._value = value
        return value

    def put_back(self) -> None:
        """Take the value of `pending` back, as it could not be stored. The next flush tries again."""
        self.written = True


MAX_IN_FOLDER = 32
MAX_IN_TREE = 256
MAX_OF_HOME = 16  # in the objects of a user's home, including removed files that are still open
MAX_IN_HOMES = 256
MAX_SIZE = 256 << 10  # vim's swap file of a 64 KiB control takes about 140 KiB
MODES = 0o777

# One row a program. {} stands for the name of any control in that folder.
PATTERNS = (
    r"\.{}\..{{1,64}}",  # rsync and mkstemp (.policy.aB3dE9), vim (.policy.swp), and .policy.tmp-1-2
    r"\.?{}~|{}\.~\d+~",  # backups of vim, install -b, cp --backup
    r"{}\.(bak|orig|rej|tmp|new|old|swp)",  # sed -i.bak, patch, scripts
    r"{}\.[A-Za-z0-9]{{6,10}}",  # mktemp policy.XXXXXX
    r"#{}#|\.#{}",  # emacs
    r"sed[A-Za-z0-9]{{6}}",  # sed -i
    r"(?=.*[A-Z0-9])[A-Za-z0-9]{{8}}",  # perl -i, 999 times of 1,000; no misspelt control
    r"\d{{4,5}}",  # vim creates a file to try if it may: 4913 and on
    r"\.?tmp[A-Za-z0-9_.-]{{6,32}}|\.goutputstream-[A-Za-z0-9]{{6}}",  # mktemp, Python, GLib
)


def is_temporary(name: str, controls: tuple[str, ...]) -> bool:
    choice = "(" + "|".join(map(re.escape, controls)) + ")"
    return any(re.fullmatch(pattern.format(*[choice] * 2), name, re.ASCII) for pattern in PATTERNS)


class Temporary(msgspec.Struct, eq=False, gc=False):
    """A temporary file. As with any file, all opens share its bytes, and it outlives its name."""

    inode: int
    folder: int
    name: str
    uid: int
    gid: int
    mode: int
    mtime: int
    home: int | None = None  # the uid of the home that it is in
    linked: bool = True
    data: bytearray = msgspec.field(default_factory=bytearray)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, patch: bytes, now: int) -> int:
        patched(self.data, offset, patch, MAX_SIZE)
        self.mtime = now
        return len(patch)

    def truncate(self, size: int, now: int) -> None:
        resized(self.data, size, MAX_SIZE)
        self.mtime = now


class Temporaries:
    def __init__(self) -> None:
        self._folders: dict[int, dict[str, Temporary]] = {}
        self._in_homes: Counter[int] = Counter()

    def find(self, folder: int, name: str) -> Temporary | None:
        return self._folders.get(folder, {}).get(name)

    def names(self, folder: int) -> list[tuple[str, int]]:
        return [(name, temporary.inode) for name, temporary in self._folders.get(folder, {}).items()]

    def check_room(self, folder: int, home: int | None = None) -> None:
        count = len(self._folders.get(folder, {}))
        if count >= MAX_IN_FOLDER or (home is None and self._of_owner() >= MAX_IN_TREE):
            raise Fault(
                "ENOSPC", f"too many temporary files in .d/ folders, {count} in this one; remove some"
            )

    def _of_owner(self) -> int:
        """Returns the number of files outside homes. Files in homes must not take the owner's share."""
        return sum(len(files) for files in self._folders.values() if next(iter(files.values())).home is None)

    def check_share(self, home: int) -> None:
        """Raises ENOSPC if a user may have no more temporary files."""
        if self._in_homes[home] >= MAX_OF_HOME or self._in_homes.total() >= MAX_IN_HOMES:
            why = f"uid {home} has {self._in_homes[home]} temporary files in .d/ folders"
            raise Fault("ENOSPC", f"{why}; remove some, or close removed files")

    def add(self, temporary: Temporary) -> None:
        if temporary.home is not None:
            self._in_homes[temporary.home] += 1
        self._put(temporary)

    def forget(self, temporary: Temporary) -> None:
        """Forget a file that has no name and no opens, so that it no longer counts."""
        if temporary.home is not None:
            self._in_homes[temporary.home] -= 1
            self._in_homes += Counter()  # removes users with zero files

    def _put(self, temporary: Temporary) -> None:
        self._folders.setdefault(temporary.folder, {})[temporary.name] = temporary

    def remove(self, temporary: Temporary) -> None:
        self._take(temporary)
        temporary.linked = False

    def _take(self, temporary: Temporary) -> None:
        files = self._folders[temporary.folder]
        del files[temporary.name]
        if not files:
            del self._folders[temporary.folder]

    def remove_all(self, folder: int) -> None:
        """Remove all files of a folder that is gone, as their editors could not remove them."""
        for temporary in list(self._folders.pop(folder, {}).values()):
            temporary.linked = False

    def rename(self, temporary: Temporary, name: str) -> None:
        """Rename a file. Another file of that name loses the name."""
        if former := self.find(temporary.folder, name):
            self.remove(former)
        self._take(temporary)
        temporary.name = name
        self._put(temporary)
