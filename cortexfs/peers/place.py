"""Where a process is: its namespaces, its root and its working directory, as /proc shows them to whoever may
trace it. A daemon of root may not, and has a program see that does nothing else (pool/callers.py).

Rules: a process is looked at by its pid; who asks makes sure that the pid was not given away meanwhile.
This file must never know of sockets, objects, frames or policy.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from cortexfs.linux import syscalls


class Place(NamedTuple):
    """As Identity has it: empty and zeroes for where we are."""

    namespaces: tuple[int, ...] = ()
    root: tuple[int, int] = (0, 0)


class SeenPlace(NamedTuple):
    place: Place
    # The working directory; None where we may not see it, as a user's daemon may not always.
    cwd: int | None

    def close(self) -> None:
        if self.cwd is not None:
            os.close(self.cwd)


HERE = Place()
USER, MNT = (list(syscalls.NAMESPACES).index(name) for name in ("user", "mnt"))


def seen(pid: int) -> SeenPlace:
    """Raises OSError: it is gone, or not for us to see."""
    cwd = _cwd(pid)
    try:
        return SeenPlace(_place(pid), cwd)
    except OSError:
        if cwd is not None:
            os.close(cwd)
        raise


def root(pid: int) -> int:
    """A descriptor of its root directory."""
    return os.open(b"/proc/%d/root" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _cwd(pid: int) -> int | None:
    """Opened without looking at it: its file system may be a hung one. The host checks the right to it."""
    try:
        return os.open(b"/proc/%d/cwd" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None


def here() -> tuple[int, ...]:
    """Returns our own numbers: mount and inode of the root, then the namespaces."""
    return *_own_root(), *own_namespaces()


def of(namespaces: tuple[int, ...], its_root: tuple[int, int]) -> Place:
    """The same of numbers as they are: of the namespaces, and of the root's mount and inode."""
    own = own_namespaces()
    # In another mount namespace a root is never ours, whatever its number.
    if its_root == _own_root() and namespaces[MNT] == own[MNT]:
        its_root = HERE.root
    return Place(namespaces if namespaces != own else HERE.namespaces, its_root)


def _place(pid: int) -> Place:
    # Nearly every caller is where the daemon is, and is found to be there in half the time that
    # its namespaces' numbers would take.
    away = any([os.readlink(path % pid) != own for path, own in _own_links()])
    if not away and syscalls.mount_and_inode(b"/proc/%d/root" % pid) == _own_root():
        return HERE
    return of(_namespaces(pid), syscalls.mount_and_inode(b"/proc/%d/root" % pid))


def _namespaces(pid: int) -> tuple[int, ...]:
    return tuple([os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in syscalls.NAMESPACES])


# Our own place, which no daemon, starter or fork server ever leaves.


@functools.cache
def own_namespaces() -> tuple[int, ...]:
    return _namespaces(os.getpid())


@functools.cache
def _own_root() -> tuple[int, int]:
    return syscalls.mount_and_inode(b"/")


@functools.cache
def _own_links() -> tuple[tuple[bytes, bytes], ...]:
    """Path and target of what must agree for a process to be where we are.

    Not mnt: a mount belongs to one mount namespace, so whoever has our root mount sees our files.
    """
    names = [name.encode() for name in syscalls.NAMESPACES if name != "mnt"]
    return tuple((b"/proc/%d/ns/" + name, os.readlink(b"/proc/self/ns/" + name)) for name in names)
