"""The owner of a state: a daemon, for as long as it runs.

Rules: the lock is the kernel's (flock(2)), so that it never outlives its holder, whose pid is in the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from cortexfs.core.errors import Fault
from cortexfs.state import no_links

LOCK = "lock"


@contextlib.contextmanager
def held(state: Path) -> Iterator[None]:
    """Hold the state. Two daemons must not share a state: sessions and logs have one writer."""
    with _tried(state) as (file, is_ours):
        if not is_ours:
            file.seek(0)
            problem = f"{state} is in use by the daemon with pid {file.read().strip()}"
            mend = "end that daemon with ctx umount, or name another directory with --state"
            raise Fault("EBUSY", f"{problem}; {mend}")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def unserved(state: Path) -> Iterator[bool]:
    """Yields True if no daemon holds this state. No daemon gets it meanwhile."""
    with _tried(state) as (_, is_ours):
        yield is_ours


@contextlib.contextmanager
def _tried(state: Path) -> Iterator[tuple[TextIO, bool]]:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(state / LOCK, "a+", opener=no_links.opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        yield file, is_ours


def holder(state: Path) -> int | None:
    """Returns the pid of the daemon that holds, or last held, this state."""
    try:
        return int((state / LOCK).read_text(errors="replace"))
    except (OSError, ValueError):
        return None
