"""The place of a process: its namespaces, its root and its working directory, as /proc shows them to a
process that may trace it. Root's daemon may not, and uses a program that does nothing else (pool/callers.py).

Rules: a process is looked at by its pid. The caller of this module makes sure that the pid was not reused.
This file must never know of sockets, objects, frames or policy.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from cortexfs.linux import syscalls


class Place(NamedTuple):
    """A place as in Identity: empty and zeroes where it is the daemon's own."""

    namespaces: tuple[int, ...] = ()
    root: tuple[int, int] = (0, 0)


class SeenPlace(NamedTuple):
    place: Place
    # The working directory; None where this process may not see it, which can happen to a user's daemon.
    cwd: int | None

    def close(self) -> None:
        if self.cwd is not None:
            os.close(self.cwd)


HERE = Place()
USER, MNT = (list(syscalls.NAMESPACES).index(name) for name in ("user", "mnt"))


def place_of(pid: int) -> SeenPlace:
    """Returns the place of a process. Raises OSError if it is gone, or hidden from this process."""
    cwd = _cwd(pid)
    try:
        return SeenPlace(_place(pid), cwd)
    except OSError:
        if cwd is not None:
            os.close(cwd)
        raise


def root(pid: int) -> int:
    """Returns a descriptor of the root directory of a process."""
    return os.open(b"/proc/%d/root" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _cwd(pid: int) -> int | None:
    """Open the working directory without a look at it: its file system may hang. The host checks rights."""
    try:
        return os.open(b"/proc/%d/cwd" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None


def here() -> tuple[int, ...]:
    """Returns this process's own numbers: mount and inode of the root, then the namespaces."""
    return *_own_root(), *own_namespaces()


def of(namespaces: tuple[int, ...], its_root: tuple[int, int]) -> Place:
    """Returns the place for these numbers: of the namespaces, and of the root's mount and inode."""
    own = own_namespaces()
    # In another mount namespace a root is never this process's root, whatever its number.
    if its_root == _own_root() and namespaces[MNT] == own[MNT]:
        its_root = HERE.root
    return Place(namespaces if namespaces != own else HERE.namespaces, its_root)


def _place(pid: int) -> Place:
    # Nearly every caller is where the daemon is. This finds it there in half the time that the numbers of its
    # namespaces would take.
    away = any([os.readlink(path % pid) != own for path, own in _own_links()])
    if not away and syscalls.mount_and_inode(b"/proc/%d/root" % pid) == _own_root():
        return HERE
    return of(_namespaces(pid), syscalls.mount_and_inode(b"/proc/%d/root" % pid))


def _namespaces(pid: int) -> tuple[int, ...]:
    return tuple([os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in syscalls.NAMESPACES])


# This process's own place. No daemon, starter or fork server ever leaves its place.


@functools.cache
def own_namespaces() -> tuple[int, ...]:
    return _namespaces(os.getpid())


@functools.cache
def _own_root() -> tuple[int, int]:
    return syscalls.mount_and_inode(b"/")


@functools.cache
def _own_links() -> tuple[tuple[bytes, bytes], ...]:
    """Returns path and target of each link that must agree for a process to be where this one is.

    The mnt link is left out. A mount belongs to one mount namespace, so a process with the same root mount
    sees the same files.
    """
    names = [name.encode() for name in syscalls.NAMESPACES if name != "mnt"]
    return tuple((b"/proc/%d/ns/" + name, os.readlink(b"/proc/self/ns/" + name)) for name in names)
