"""Stamps of files: a file that replaces another has a different stamp.

This file must never know what is in a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


def of_file(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_dev}.{status.st_ino}.{status.st_size}.{status.st_mtime_ns}"


def of_files(paths: Iterable[str | Path]) -> str:
    """Returns one stamp of these files, folders and links as they are now, or "" if one is missing."""
    import hashlib  # a slow import that a listing does not need

    digest = hashlib.sha256()
    for path in paths:
        try:
            found = os.lstat(path)
        except OSError:
            return ""
        facts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        digest.update(f"{path}\0{facts}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def of_folder(folder: str | Path) -> str:
    """Returns one stamp of a folder and all that is in it."""
    walked = os.walk(folder)
    below = (f"{above}/{name}" for above, folders, files in walked for name in sorted(folders + files))
    return of_files((folder, *below))


class ReadFile(Generic[T]):
    """A file's value, read again when the file has changed. Threads may share it: each sees a whole value."""

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._read = read
        self._known: tuple[str, T] | None = None

    def value(self) -> T:
        known, stamp = self._known, ""
        with suppress(OSError):  # it is missing, which is a state of it, too
            stamp = of_file(str(self._path))
        if known is None or known[0] != stamp:
            known = self._known = stamp, self._read()
        return known[1]
