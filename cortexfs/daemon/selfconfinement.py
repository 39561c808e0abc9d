"""The daemon of root gives up its powers before it serves, as it reads untrusted input.

It keeps no capability, changes only files of its state, and makes few system calls. Work that needs more is
done by processes that read no untrusted input: the starter (host/starter.py), the fork server, and the
looker (runner/cortexfs-looker.c).

Rules: this happens once, before there is a second thread. A user's daemon has nothing to give up.
docs/security.md says what an attacker who takes the daemon over could still do.
This file must never know what the daemon does with its remaining powers.
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
    """Give up the powers. `channels` lead to the starter and the looker; only these may send descriptors.
    Raises Fault EACCES if the daemon cannot, or could not use its own files then."""
    if os.geteuid():
        return
    assert len(os.listdir("/proc/self/task")) == 1
    os.umask(0o022)  # files that we create keep the modes that we choose
    try:
        landlock.write_only_in([*_folders(state), os.devnull])
    except (Fault, OSError) as problem:
        log.warning("the daemon's access to other files cannot be limited here: %s", problem)
    # Resolvers of other C libraries use recvmsg(2) on any socket; so does safe_sockets on older kernels.
    alone = safe_sockets.REFUSED and platform.libc_ver()[0] == "glibc"
    try:
        seccomp.guard(channels if alone else ())
    except (Fault, OSError) as problem:
        log.warning("the daemon's own system calls cannot be filtered here: %s", problem)
    try:
        capabilities.keep(0)
    except OSError as problem:
        raise Fault("EACCES", f"the daemon cannot give up its own powers: {problem.strerror}") from None
    # Root without capabilities opens files that it owns, and files that everybody may open.
    for path, rights in ((state, os.R_OK | os.W_OK), (config, os.R_OK), (_PACKAGE, os.R_OK)):
        needed = f"root's daemon gives up its capabilities, and needs {path} without them"
        for above in reversed(path.resolve().parents):
            if not os.access(above, os.X_OK):
                raise Fault("EACCES", f"{needed}: chmod a+x {above}, or use a directory of root's")
        if not os.access(path, rights):
            raise Fault("EACCES", f"{needed}: chown root {path}")


def _folders(state: Path) -> Iterator[str]:
    yield os.path.realpath(state)
    for beside in (place_of(state), kept_of(state)):
        with suppress(OSError):  # then the daemon cannot use that folder either
            beside.mkdir(mode=0o755, exist_ok=True)
            yield os.path.realpath(beside)
