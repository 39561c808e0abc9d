"""The daemon of root gives up its powers when it serves, as it reads what strangers send.

It keeps no capability, changes no file but its state, and makes few system calls. What needs more is another
process's, which reads nothing of strangers: the starter's (host/starter.py), the fork server's, and the
looker's (runner/cortexfs-looker.c).

Rules: it is done once, before there is a second thread. A user's daemon has nothing to give up.
docs/security.md says what could still be done with a daemon that was taken over.
This file must never know what the daemon does with what it keeps.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import cortexfs
from cortexfs.core.errors import Fault
from cortexfs.linux import capabilities, landlock, seccomp
from cortexfs.peers import safe_sockets
from cortexfs.state.directories import kept_of, place_of

_PACKAGE = Path(cortexfs.__file__)

log = logging.getLogger("cortexfs")


def give_up(state: Path, config: Path, channels: Sequence[int]) -> None:
    """Change nothing but the state from now on. `channels` lead to the starter and the looker, from which
    alone descriptors may come. Raises Fault EACCES where not even that can be done any more."""
    if os.geteuid():
        return
    assert len(os.listdir("/proc/self/task")) == 1
    os.umask(0o022)  # nothing gets another mode than it is made with
    try:
        landlock.write_only_in([*_folders(state), os.devnull])
    except (Fault, OSError) as problem:
        log.warning("the daemon is not kept from other files than its own here: %s", problem)
    # Elsewhere resolvers take what they receive by recvmsg(2), and so must whoever looks for descriptors.
    alone = safe_sockets.REFUSED and platform.libc_ver()[0] == "glibc"
    try:
        seccomp.guard(channels if alone else ())
    except (Fault, OSError) as problem:
        log.warning("the daemon's own system calls are not filtered here: %s", problem)
    try:
        capabilities.keep(0)
    except OSError as problem:
        raise Fault("EACCES", f"the daemon cannot give up its own powers: {problem.strerror}") from None
    # Root without capabilities opens what it owns, and what everybody may open.
    for path, rights in ((state, os.R_OK | os.W_OK), (config, os.R_OK), (_PACKAGE, os.R_OK)):
        needed = f"the daemon of root gives up its powers, and needs {path} then"
        for above in reversed(path.resolve().parents):
            if not os.access(above, os.X_OK):
                raise Fault("EACCES", f"{needed}: chmod a+x {above}, or use a place of root's")
        if not os.access(path, rights):
            raise Fault("EACCES", f"{needed}: chown root {path}")


def _folders(state: Path) -> Iterator[str]:
    yield os.path.realpath(state)
    for beside in (place_of(state), kept_of(state)):
        with suppress(OSError):  # then nothing can be kept there either
            beside.mkdir(mode=0o755, exist_ok=True)
            yield os.path.realpath(beside)
