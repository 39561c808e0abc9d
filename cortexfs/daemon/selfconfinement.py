"""The daemon of root gives up powers when it serves, as it reads what strangers send. No wall yet.

Rules: what is kept is in `KEPT`, each with its reason, and docs/security.md says what could be done with it.
Whatever needs more is the starter's and the fork server's, which read nothing of strangers. It is done once,
before there is a second thread. A user's daemon has nothing to give up.
This file must never know what the daemon does with what it keeps.
"""

from __future__ import annotations

import logging
import os
import platform

from cortexfs.core.errors import Fault
from cortexfs.linux import capabilities, seccomp
from cortexfs.peers import safe_sockets

KEPT = {
    capabilities.CHOWN: "to give users what is kept for them in their homes (sessions/disk.py)",
    capabilities.DAC_OVERRIDE: "to read and write that later",
    capabilities.SYS_PTRACE: "to see callers' namespaces, roots and directories (peers/caller.py)",
}

log = logging.getLogger("cortexfs")


def give_up(channel: int) -> None:
    """Keep what is needed. `channel` leads to the starter, from which descriptors may come."""
    if os.geteuid():
        return
    assert len(os.listdir("/proc/self/task")) == 1
    # Elsewhere resolvers take what they receive by recvmsg(2), and so must whoever looks for descriptors.
    alone = safe_sockets.REFUSED and platform.libc_ver()[0] == "glibc"
    try:
        seccomp.guard(channel if alone else None)
    except (Fault, OSError) as problem:
        log.warning("the daemon's own system calls are not filtered here: %s", problem)
    try:
        capabilities.keep(capabilities.mask(*KEPT))
    except OSError as problem:
        raise Fault("EACCES", f"the daemon cannot give up its own powers: {problem.strerror}") from None
