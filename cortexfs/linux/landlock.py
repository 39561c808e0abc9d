"""A process that opens what a view shows, and nothing else, by Landlock, which takes no root.

Rules: all that the running kernel's Landlock can refuse is refused, and only the view gives some of it
back. A path is opened as the caller, so the view gives nobody more than he has. What a version of
Landlock cannot refuse yet is what the tables below have from later ones.
This file must never know what an agent, a host or a plugin is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

from cortexfs.core.errors import Fault
from cortexfs.linux import syscalls

# <linux/landlock.h>: the version that brought it, and the letter of a view that gives it back.
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

_HARMLESS = ("null", "random", "urandom", "shm")  # of /dev

NAMES = "n"  # the letter for a folder's names alone

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
    """Close everything to this thread and its descendants but `view`: resolved paths, and what of "rwx" they
    give. One that is a link by now is not what the view was made for, and stays closed.
    Without the network, `port` is what TCP may connect to. Sockets with a path stay open: version 9 could
    close those outside a view, and not those in it, so a filter of system calls closes all
    (linux/seccomp.py). Raises Fault EACCES where the kernel has no Landlock, and OSError when it refuses
    what it should not.
    """
    abi = version()
    files, net, scopes = handled(abi)
    ruleset = syscalls.landlock_ruleset(files, 0 if network else net, scopes)
    try:
        for path, access in view:
            # Not there, closed to the caller, or of no file system (a pipe by /dev/stdin): it stays closed.
            # One that hangs holds up this start alone, and the fork server ends that after a while.
            with suppress(OSError):
                _allow(ruleset, path, rights(access) & files)
        if port is not None and not network and net:
            syscalls.landlock_allow_port(ruleset, port, _NETWORK["connect_tcp"][0])
        syscalls.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def write_only_in(paths: Iterable[str]) -> None:
    """Let this thread and its descendants change nothing but what is at or below these resolved paths, and
    open no devices but harmless ones: root that reads disks reads everybody's files. Nobody's processes can
    be traced any more but their own.

    Raises Fault EACCES where the kernel's Landlock is too old to move files between folders, and OSError.
    """
    abi = version()
    if abi < _DIRECTORY["refer"][1]:
        raise Fault("EACCES", "this kernel's Landlock is too old for that (Linux 5.19 or later)")
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
    """Raises Fault EACCES where there is none."""
    try:
        return syscalls.landlock_abi()
    except OSError as error:
        # Not built in, not switched on, or hidden by the seccomp filter of a container.
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
        raise Fault("EACCES", _NONE) from error


def handled(abi: int) -> tuple[int, int, int]:
    """Returns the rights that version `abi` can refuse: to files, to the network, and beyond the process's
    domain."""
    files = sum(right for right, since, _ in (_FILE | _DIRECTORY).values() if since <= abi)
    net = sum(right for right, since in _NETWORK.values() if since <= abi)
    return files, net, sum(scope for scope, since in _SCOPES.values() if since <= abi)


def rights(access: str) -> int:
    """Returns the rights that letters of "rwx" give in a directory, and in all that is below it."""
    given = 0
    for letter in access:
        given |= _GIVES[letter]
    return given


def _allow(ruleset: int, path: str, given: int) -> None:
    try:  # and not stat(2), which waits where it is the root of a file system that does not answer
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    except NotADirectoryError:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        given &= _FILE_RIGHTS  # the others are EINVAL
    try:
        if os.readlink(f"/proc/self/fd/{fd}") == path and given:
            syscalls.landlock_allow(ruleset, fd, given)
    finally:
        os.close(fd)
