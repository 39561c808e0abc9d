"""For tests of root that become other users: makes a checkout in a closed directory readable for them.

Rules: this happens before any test, in a mount namespace of the tests' own, at the same paths. Directories
that are open to all stay untouched. This module must never know what a test wants.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

CLONE_NEWNS = 0x20000  # <sched.h>
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 1 << 12, 1 << 13, 1 << 14, 1 << 18  # <sys/mount.h>


def needed() -> set[Path]:
    """Returns all that hosts read: the checkout, the interpreter and the packages installed for it."""
    return {Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix)}


def open_the_way(paths: Iterable[Path]) -> None:
    """Replace each closed directory above `paths` by a passable directory that holds these paths alone."""
    hidden = {path: closed for path in paths if (closed := _closed(path))}
    if not hidden:
        return
    _call("unshare", CLONE_NEWNS)
    _mount(b"none", b"/", MS_REC | MS_PRIVATE)
    for closed in set(hidden.values()):
        below = sorted(path for path, by in hidden.items() if by == closed)
        _replace(closed, [path for path in below if not set(path.parents) & set(below)])
    os.chdir(os.getcwd())  # the current directory was below a path that is covered now


def _closed(path: Path) -> Path | None:
    """Returns the first directory on the way to `path` that not everyone may pass."""
    way = reversed(path.parents)
    return next((step for step in way if not step.stat().st_mode & stat.S_IXOTH), None)


def _replace(closed: Path, kept: Iterable[Path]) -> None:
    umask = os.umask(0o022)
    with tempfile.TemporaryDirectory() as place:
        _mount(b"tmpfs", os.fsencode(place), 0, b"tmpfs", b"mode=755")
        for path in kept:
            target = place / path.relative_to(closed)
            target.mkdir(parents=True)
            _mount(bytes(path), bytes(target), MS_BIND | MS_REC)
        _mount(os.fsencode(place), bytes(closed), MS_MOVE)
    os.umask(umask)


def _mount(
    source: bytes, target: bytes, flags: int, kind: bytes | None = None, data: bytes | None = None
) -> None:
    _call("mount", source, target, kind, flags, data)


def _call(name: str, *arguments: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")
