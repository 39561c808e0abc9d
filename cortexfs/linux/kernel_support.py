"""The means of the running kernel to hold a plugin to its manifest's claims (core/manifest/governance.py).

Rules: what is here is applied by hosts (host/confine/sandbox.py), or by the programs that they start; a
claim that needs anything else is refused.
"""

from __future__ import annotations

import functools
import os

from cortexfs.core.manifest.governance import Mechanism
from cortexfs.linux import seccomp, syscalls

LANDLOCK_ABI = 3  # the first that keeps files from being cut to nothing


@functools.cache
def available() -> frozenset[Mechanism]:
    found = {Mechanism.PROCESS, Mechanism.RLIMITS}
    if os.uname().machine in seccomp.MACHINES:
        found.add(Mechanism.SECCOMP)
        # Without a filter, what is closed could be reached through somebody who listens on a socket.
        found |= {Mechanism.LANDLOCK} if _landlock() >= LANDLOCK_ABI else set()
    return frozenset(found)


def _landlock() -> int:
    try:
        return syscalls.landlock_abi()
    except OSError:
        return 0
