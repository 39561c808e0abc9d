"""Where a plugin keeps what is to outlive its hosts: a directory for each of its users.

The daemon names one place for a plugin (`hostcalls.Plugin.keeps`), in which nobody else may write. A host
makes its user's directory there while it still has the daemon's powers, so that no user can take another's.

Rules: a directory is its user's alone (0700). Whoever describes plugins keeps nothing.
This file must never know what is kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import DESCRIBER, Identity, Plugin


def prepare(plugin: Plugin, identity: Identity) -> None:
    """Make the directory, before the host becomes its caller."""
    if not plugin.keeps or identity.label == DESCRIBER:
        return
    own = f"{plugin.keeps}/{identity.uid}"
    try:
        with contextlib.suppress(FileExistsError):  # also made by another host of his, at this moment
            os.mkdir(own, 0o700)
        found = os.lstat(own)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(0, "it is no directory", own)
        if os.geteuid() == 0:
            os.chown(own, identity.uid, identity.gid, follow_symlinks=False)
    except OSError as error:
        told = f"{plugin.name} has no place for what it keeps: {own}: {error.strerror}"
        raise Fault("EACCES", told) from error


def place(plugin: Plugin) -> Path | None:
    """This user's directory, from inside a host; None where nothing is kept."""
    own = f"{plugin.keeps}/{os.geteuid()}"
    return Path(own) if plugin.keeps and os.access(own, os.W_OK) else None


# There as long as a plugin has told its user's hooks that it is installed, and not that it is no more.
MARK = "installed"


def begin(own: str) -> None:
    """That its first hooks were called for this user is to be known when it is uninstalled."""
    with contextlib.suppress(OSError):  # without room its last hooks are not called
        Path(own, MARK).touch(mode=0o600)


def leave(own: str) -> None:
    with contextlib.suppress(OSError):
        Path(own, MARK).unlink()


def has_begun(keeps: Path, uid: int) -> bool:
    return (keeps / str(uid) / MARK).exists()


def view(plugin: Plugin, identity: Identity) -> tuple[tuple[str, str], ...]:
    """What a confined host of that user may open besides."""
    return ((os.path.realpath(f"{plugin.keeps}/{identity.uid}"), "rw"),) if plugin.keeps else ()
