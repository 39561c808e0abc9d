"""Where a plugin keeps what is to outlive its hosts: a directory for each of its users.

The daemon names one place for a plugin (`hostcalls.Plugin.keeps`), in which nobody else may write. A host
makes its user's directory there while it still has root's powers, so that no user can take another's.

Rules: a directory is its user's alone (0700), and lies beside the daemon's state: what the daemon names may
be no other place of root's, and no link is followed to one. Whoever describes plugins keeps nothing.
This file must never know what is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import DESCRIBER, Identity, Plugin


def prepare(plugin: Plugin, identity: Identity, beside: str) -> None:
    """Make the directory, before the host becomes its caller. `beside` is where all plugins keep theirs."""
    if not plugin.keeps or identity.label == DESCRIBER:
        return
    kept, name = os.path.split(plugin.keeps)
    try:
        if kept != beside or name in ("", ".", ".."):
            raise PermissionError(errno.EPERM, "that is no place for it")
        with _opened(kept) as above, _opened(name, above) as place:
            with contextlib.suppress(FileExistsError):  # also made by another host of his, at this moment
                os.mkdir(str(identity.uid), 0o700, dir_fd=place)
            with _opened(str(identity.uid), place) as own:
                if os.geteuid() == 0:
                    os.fchown(own, identity.uid, identity.gid)
    except OSError as error:
        where = f"{plugin.keeps}/{identity.uid}"
        told = f"{plugin.name} has no place for what it keeps: {where}: {error.strerror}"
        raise Fault("EACCES", told) from error


@contextlib.contextmanager
def _opened(path: str, above: int | None = None) -> Iterator[int]:
    """A directory, and no link to one."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield folder
    finally:
        os.close(folder)


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
    """Returns the paths that a confined host of that user may open besides."""
    return ((os.path.realpath(f"{plugin.keeps}/{identity.uid}"), "rw"),) if plugin.keeps else ()
