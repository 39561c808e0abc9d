"""The means of the running kernel to hold a plugin to its manifest's claims (core/manifest/governance.py).

Rules: what is here is applied by hosts (host/confine/view.py), or by the programs that they start; a
claim that needs anything else is refused.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress

from cortexfs.core.manifest.governance import Mechanism
from cortexfs.linux import seccomp, syscalls

LANDLOCK_ABI = 3  # the first that keeps files from being cut to nothing


@functools.cache
def available() -> frozenset[Mechanism]:
    found = {Mechanism.PROCESS, Mechanism.RLIMITS}
    if os.uname().machine in seccomp.MACHINES:
        found.add(Mechanism.SECCOMP)
        # Without a filter, what is closed could be reached through somebody who listens on a socket.
        with suppress(OSError):
            found |= {Mechanism.LANDLOCK} if syscalls.landlock_abi() >= LANDLOCK_ABI else set()
    return frozenset(found)
