"""A process's capabilities (capabilities(7)), dropped for good.

This file must never know the process, or the reason.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from cortexfs.linux import syscalls

SETGID, SETUID, SETPCAP, SYS_PTRACE, SYS_ADMIN = 6, 7, 8, 19, 21
# Powers over files, their modes and owners, and over ports.
CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, NET_BIND_SERVICE = 0, 1, 2, 3, 4, 10


def mask(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


def keep(mask: int) -> None:
    """Keep at most these for this thread and its descendants. Raises OSError."""
    held = syscalls.permitted()
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    # The bounding set comes first, as this needs CAP_SETPCAP. A process of uid 0 gets the bounding set at
    # exec, so SECBIT_NOROOT has nothing left to forbid.
    if held >> SETPCAP & 1:
        for number in _known():
            if not mask >> number & 1:
                syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
    syscalls.set_capabilities(held & mask)
    if syscalls.permitted() & ~mask:
        raise OSError(errno.EPERM, "some capabilities stayed")


def _known() -> Iterator[int]:
    for number in range(64):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_READ, number)
        except OSError:
            return
        yield number
