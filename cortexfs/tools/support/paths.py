"""Paths and open files for the tools.

Rules: a relative path starts at the caller's working directory, which the kernel keeps for this thread alone,
so no path is resolved or remembered here. No function waits for the other end of a pipe.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from functools import partial
from io import FileIO
from itertools import chain, repeat, starmap
from operator import attrgetter

from cortexfs.sdk import ExecutionFailed, InvalidInput

MAX_LINKS = 40  # followed on the way to a file, as in the kernel
SAFE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ODD = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def checked(path: str, name: str = "path") -> str:
    """Returns `path` if a system call can take it. Raises InvalidInput otherwise."""
    if not path:
        raise InvalidInput(f"{name}: it is empty; the working directory is '.'")
    try:
        if b"\0" in os.fsencode(path):
            raise InvalidInput(f"{name}: it holds a NUL character, which no path can")
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: it is not valid Unicode") from None
    return path


def at_least(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise InvalidInput(f"{name}: it is {number}, and must be at least {least}")


def shown(name: str) -> str:
    """Returns `name` as one line of UTF-8, with backslash escapes for other bytes."""
    return _ODD.sub(_escape, name)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:  # Python's form of a byte that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def sorted_entries(folder: int) -> list[os.DirEntry[str]]:
    """Read the types of entries while the folder is open, as some file systems need the open folder."""
    with os.scandir(folder) as entries:
        return sorted(entries, key=attrgetter("name"))


def kind_of(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "unknown")


def owned(call: Callable[..., int], *arguments: object) -> FileIO:
    """Returns the descriptor that a system call returns, as an object that closes itself.

    All of it is one C call: a cancellation that strikes while open(2) waits for a slow disk can drop the
    object, but never lose a descriptor.
    """
    return next(map(FileIO, map(call, *zip(arguments))))


def pipe() -> list[FileIO]:
    """Returns both ends of a pipe, the reading end first."""
    return list(map(FileIO, chain.from_iterable(starmap(os.pipe, [()]))))  # in one C call, as above


def opened(path: str, flags: int, mode: int = 0o666, folder: int | None = None) -> FileIO:
    return owned(partial(os.open, dir_fd=folder), path, flags | SAFE, mode)


def open_into(files: list[FileIO], folder: int, names: list[str]) -> None:
    """Open files of a folder for reading, in order, and no links. If one raises OSError, `files` has the
    files before it.

    One C call opens all of them: a search opens files by the hundred thousand.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | SAFE
    files.extend(map(FileIO, map(partial(os.open, dir_fd=folder), names, repeat(flags))))


def opened_regular(path: str, flags: int = os.O_RDONLY, folder: int | None = None) -> FileIO:
    """Open a regular file. Its type is checked before, as opening a device or a pipe may have effects. With
    `folder`, links are refused."""
    is_link_followed = folder is None
    _refuse_others(os.stat(path, dir_fd=folder, follow_symlinks=is_link_followed).st_mode, path)
    file = opened(path, flags | (0 if is_link_followed else os.O_NOFOLLOW), folder=folder)
    try:
        _refuse_others(os.fstat(file.fileno()).st_mode, path)
    except BaseException:  # a cancellation too; no other code closes the file
        file.close()
        raise
    return file


def _refuse_others(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise ExecutionFailed(f"{shown(path)} is a directory; fs.list shows what is in it", "EISDIR")
    if not stat.S_ISREG(mode):
        why = f"is a {kind_of(mode)}, and this tool takes regular files only"
        raise ExecutionFailed(f"{shown(path)} {why}", "EINVAL")


def write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file.fileno(), view) :]
