"""The kernel's side: attributes for it, the names that it is told to forget, and the errors that it hears.

Rules: how long the kernel may remember follows from `Keep` alone, here. Owner and mode of a control
are what the tree says: setting them to what they are is no error, and neither are other permission
bits, which have no effect (`install` sets 0755, rsync what its source has); another owner is EPERM.
`forget` blocks, and a notification waits for handlers that hold the same folder: it belongs in a
thread, and one about a folder's entries is never awaited inside a handler. `guarded` stands around every
handler that can fail: any exception but FUSEError would end the mount for all. A Fault becomes its
errno; a bug becomes EIO for whoever met it and a line in the log, which is counted (daemon/status.py), and
is raised only where tests want to see it.
This file must never know the tree.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes, FUSEError, SetattrFields, StatvfsData

from cortexfs.core.errors import Fault, errno_of
from cortexfs.core.tree.edits import MODES, Temporary
from cortexfs.core.tree.places import Attributes, Keep, Stale

FOREVER = 1e9  # seconds; we say when it ends
# How long the kernel keeps an entry, and its attributes. Each one that it does not keep is asked for at each
# step on the way to a file.
TIMEOUTS: dict[Keep, tuple[float, float]] = {
    Keep.ALWAYS: (FOREVER, FOREVER),
    Keep.ENTRY: (FOREVER, 0),
    Keep.NOTHING: (0, 0),
    Keep.FOLDER: (FOREVER, 1),
    Keep.PASSING: (0, 1),
}
BLOCK = 4096  # what df counts in
SECTOR = 512  # what st_blocks counts in (stat(2))


def entry(inode: int, found: Attributes) -> EntryAttributes:
    out = EntryAttributes()
    out.st_ino = inode
    out.entry_timeout, out.attr_timeout = TIMEOUTS[found.keep]
    out.st_mode = found.mode
    out.st_nlink = found.links
    out.st_uid = found.uid
    out.st_gid = found.gid
    out.st_size = found.size
    out.st_blocks = -(-found.size // SECTOR)
    out.st_atime_ns = out.st_mtime_ns = out.st_ctime_ns = found.mtime
    return out


def missing() -> EntryAttributes:
    """There is nothing of that name, which the kernel may remember."""
    out = EntryAttributes()
    out.st_ino = 0
    out.entry_timeout = FOREVER
    return out


def check_change(found: Attributes, wanted: EntryAttributes, fields: SetattrFields) -> None:
    if fields.update_mode and wanted.st_mode & 0o7000:
        raise Fault("EPERM", "a control has no set-id or sticky bit")
    if fields.update_uid and wanted.st_uid != found.uid:
        raise Fault("EPERM", "the owner of a control is the tree's to say")
    if fields.update_gid and wanted.st_gid != found.gid:
        raise Fault("EPERM", "the group of a control is the tree's to say")


def is_of_times(fields: SetattrFields) -> bool:
    """Returns True if nothing is to be changed but times."""
    return not (fields.update_size or fields.update_mode or fields.update_uid or fields.update_gid)


def change_temporary(temporary: Temporary, wanted: EntryAttributes, fields: SetattrFields) -> None:
    """The kernel has checked that the caller may."""
    if fields.update_mode:
        temporary.mode = wanted.st_mode & MODES
    if fields.update_uid:
        temporary.uid = wanted.st_uid
    if fields.update_gid:
        temporary.gid = wanted.st_gid
    if fields.update_mtime:
        temporary.mtime = wanted.st_mtime_ns


def forget(stale: Stale) -> None:
    """Make the kernel forget; nobody is given what was there once this returns."""
    for folder, name in stale.entries:
        with contextlib.suppress(OSError):  # ENOENT: it did not know; ENODEV: the mount has gone
            pyfuse3.invalidate_entry(folder, name.encode())
    for inode in stale.inodes:
        with contextlib.suppress(OSError):
            pyfuse3.invalidate_inode(inode)


def room(files: int, size: int) -> StatvfsData:
    """Returns the numbers of df: all of it free."""
    found = StatvfsData()
    found.f_bsize = found.f_frsize = BLOCK
    found.f_blocks = found.f_bfree = found.f_bavail = size // BLOCK
    found.f_files = found.f_ffree = found.f_favail = files
    found.f_namemax = 255
    return found


log = logging.getLogger("cortexfs.tree.fuse")


class StrictMode(Protocol):
    strict: bool


S = TypeVar("S", bound=StrictMode)
P = ParamSpec("P")
T = TypeVar("T")


def guarded(
    handler: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    @functools.wraps(handler)
    async def guard(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(self, *args, **kwargs)
        except FUSEError:
            raise
        except Fault as fault:
            raise FUSEError(fault.errno) from None
        except Exception:  # pyfuse3 would unmount; whoever asked gets EIO, the log the traceback
            log.exception("%s failed; please report this", handler.__name__)
            if self.strict:
                raise
            raise FUSEError(errno_of("EIO")) from None

    return guard
