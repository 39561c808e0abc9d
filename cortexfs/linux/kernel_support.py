"""The means by which the running kernel can enforce a manifest's claims (core/manifest/governance.py).

Rules: hosts (host/confine/view.py), or programs that hosts start, apply these means. A claim that needs
another one is refused.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress

from cortexfs.core.manifest.governance import Mechanism
from cortexfs.linux import seccomp, syscalls

LANDLOCK_ABI = 3  # the first version that can refuse truncation


@functools.cache
def available() -> frozenset[Mechanism]:
    found = {Mechanism.PROCESS, Mechanism.RLIMITS}
    if os.uname().machine in seccomp.MACHINES:
        found.add(Mechanism.SECCOMP)
        # Without a filter, a closed path could be reached through a server that listens on a Unix socket.
        with suppress(OSError):
            found |= {Mechanism.LANDLOCK} if syscalls.landlock_abi() >= LANDLOCK_ABI else set()
    return frozenset(found)
