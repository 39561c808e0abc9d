"""Landlock: it limits a process to the paths of a view, and needs no root.

Rules: every right that the running kernel's Landlock can refuse is refused, and only the view gives rights
back. A path is opened as the caller, so a view never gives more than the caller has. The tables below name
the version that first can refuse each right.
This file must never know what an agent, a host or a plugin is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

from cortexfs.core.errors import Fault
from cortexfs.linux import syscalls

# <linux/landlock.h>: the bit, the first version with it, and the letter of a view that gives it back.
_FILE = {
    "execute": (1 << 0, 1, "x"),
    "write_file": (1 << 1, 1, "w"),
    "read_file": (1 << 2, 1, "r"),
    "truncate": (1 << 14, 3, "w"),
    "ioctl_dev": (1 << 15, 5, "w"),
}
_DIRECTORY = {
    "read_dir": (1 << 3, 1, "r"),
    "remove_dir": (1 << 4, 1, "w"),
    "remove_file": (1 << 5, 1, "w"),
    "make_char": (1 << 6, 1, "w"),
    "make_dir": (1 << 7, 1, "w"),
    "make_reg": (1 << 8, 1, "w"),
    "make_sock": (1 << 9, 1, "w"),
    "make_fifo": (1 << 10, 1, "w"),
    "make_block": (1 << 11, 1, "w"),
    "make_sym": (1 << 12, 1, "w"),
    "refer": (1 << 13, 2, "w"),
}
_NETWORK = {"bind_tcp": (1 << 0, 4), "connect_tcp": (1 << 1, 4)}
_SCOPES = {"abstract_unix_socket": (1 << 0, 6), "signal": (1 << 1, 6)}

_HARMLESS = ("null", "random", "urandom", "shm")  # in /dev

NAMES = "n"  # the letter of a view that lets a folder be listed and no more

_FILE_RIGHTS = sum(right for right, _, _ in _FILE.values())
_GIVES = {
    letter: sum(right for right, _, by in (_FILE | _DIRECTORY).values() if by == letter) for letter in "rwx"
}
_GIVES[NAMES] = _DIRECTORY["read_dir"][0]

_NONE = (
    "an agent's tool cannot be confined here: this kernel has no Landlock (Linux 5.13 or later, "
    "with landlock in /sys/kernel/security/lsm or in lsm= at boot)"
)


def restrict(view: Iterable[tuple[str, str]], *, network: bool, port: int | None = None) -> None:
    """Close everything to this thread and its descendants but `view`: resolved paths with letters of "rwx".
    A path that has become a link since then stays closed. Without the network, TCP may connect to `port`
    alone. Sockets with a path stay open: version 9 can close those outside of a view but not those in it,
    so a filter of system calls closes all of them (linux/seccomp.py). Raises Fault EACCES on a kernel
    without Landlock, and OSError if the kernel refuses a call.
    """
    abi = version()
    files, net, scopes = handled(abi)
    ruleset = syscalls.landlock_ruleset(files, 0 if network else net, scopes)
    try:
        for path, access in view:
            # A path that is missing, closed to the caller or on no file system (a pipe as /dev/stdin) stays
            # closed. A path that hangs holds up this start alone, until the fork server ends it.
            with suppress(OSError):
                _allow(ruleset, path, rights(access) & files)
        if port is not None and not network and net:
            syscalls.landlock_allow_port(ruleset, port, _NETWORK["connect_tcp"][0])
        syscalls.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def write_only_in(paths: Iterable[str]) -> None:
    """Let this thread and its descendants write only at or below these resolved paths, and trace only their
    own processes. They open only harmless devices, as root could read everybody's files from a disk.

    Raises Fault EACCES if the kernel's Landlock is too old to move files between folders, and OSError.
    """
    abi = version()
    if abi < _DIRECTORY["refer"][1]:
        raise Fault("EACCES", "Landlock here allows no moves between folders; run Linux 5.19 or later")
    reads = _FILE["read_file"][0]
    files = handled(abi)[0] & _GIVES["w"] | reads
    ruleset = syscalls.landlock_ruleset(files, 0, 0)
    try:
        for path in paths:
            _allow(ruleset, path, files)
        above = (f"/{name}" for name in os.listdir("/") if name != "dev")
        for path in (*above, *(f"/dev/{name}" for name in _HARMLESS)):
            with suppress(OSError):
                _allow(ruleset, path, reads)
        syscalls.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def version() -> int:
    """Returns the kernel's version of Landlock. Raises Fault EACCES on a kernel without it."""
    try:
        return syscalls.landlock_abi()
    except OSError as error:
        # The kernel lacks it, it is switched off, or the seccomp filter of a container hides it.
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
        raise Fault("EACCES", _NONE) from error


def handled(abi: int) -> tuple[int, int, int]:
    """Returns the rights that version `abi` can refuse: for files, for the network, beyond the domain."""
    files = sum(right for right, since, _ in (_FILE | _DIRECTORY).values() if since <= abi)
    net = sum(right for right, since in _NETWORK.values() if since <= abi)
    return files, net, sum(scope for scope, since in _SCOPES.values() if since <= abi)


def rights(access: str) -> int:
    """Returns the rights that letters of "rwx" give in and below a directory."""
    mask = 0
    for letter in access:
        mask |= _GIVES[letter]
    return mask


def _allow(ruleset: int, path: str, mask: int) -> None:
    try:  # not stat(2), which waits at the root of a file system that does not answer
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    except NotADirectoryError:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        mask &= _FILE_RIGHTS  # other rights are EINVAL for a file
    try:
        if os.readlink(f"/proc/self/fd/{fd}") == path and mask:
            syscalls.landlock_allow(ruleset, fd, mask)
    finally:
        os.close(fd)
