"""The kernel's side: attributes and errors for the kernel, and the names that it has to forget.

Rules: how long the kernel may remember follows from `Keep` alone, here. The tree defines owner and mode of a
control. Setting them to their values is no error, nor are other permission bits, which have no effect
(`install` sets 0755, rsync the mode of its source); another owner is EPERM. `forget` blocks, and a
notification waits for handlers that hold the same folder. So it belongs in a thread, and a handler never
awaits one about a folder's entries. `guarded` stands around every handler that can fail: any exception but
FUSEError would end the mount for all. A Fault becomes its errno. A bug becomes EIO for its caller and a line
in the log, which is counted (daemon/status.py), and is raised only where tests want to see it.
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
from cortexfs.tree.forgetting import Forgetting

FOREVER = 1e9  # seconds, until `forget`
# The seconds for which the kernel keeps an entry, and its attributes. It asks for one that it does not keep
# at each step on the way to a file.
TIMEOUTS: dict[Keep, tuple[float, float]] = {
    Keep.ALWAYS: (FOREVER, FOREVER),
    Keep.ENTRY: (FOREVER, 0),
    Keep.NOTHING: (0, 0),
    Keep.FOLDER: (FOREVER, 1),
    Keep.PASSING: (0, 1),
    Keep.LISTED: (0.1, 1),
}
BLOCK = 4096  # the unit of df
SECTOR = 512  # the unit of st_blocks (stat(2))


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
    """Returns the answer for a missing name, which the kernel may remember."""
    out = EntryAttributes()
    out.st_ino = 0
    out.entry_timeout = FOREVER
    return out


def check_change(found: Attributes, change: EntryAttributes, fields: SetattrFields) -> None:
    if fields.update_mode and change.st_mode & 0o7000:
        raise Fault("EPERM", "a control has no set-id or sticky bit")
    if fields.update_uid and change.st_uid != found.uid:
        raise Fault("EPERM", "the owner of a control cannot be changed")
    if fields.update_gid and change.st_gid != found.gid:
        raise Fault("EPERM", "the group of a control cannot be changed")


def is_of_times(fields: SetattrFields) -> bool:
    """Returns True if nothing is to be changed but times."""
    return not (fields.update_size or fields.update_mode or fields.update_uid or fields.update_gid)


def change_temporary(temporary: Temporary, change: EntryAttributes, fields: SetattrFields) -> None:
    """Change a temporary file's attributes. The kernel has checked that the caller may."""
    if fields.update_mode:
        temporary.mode = change.st_mode & MODES
    if fields.update_uid:
        temporary.uid = change.st_uid
    if fields.update_gid:
        temporary.gid = change.st_gid
    if fields.update_mtime:
        temporary.mtime = change.st_mtime_ns


_names = Forgetting()


def forget(stale: Stale, names: Forgetting = _names) -> None:
    """Make the kernel forget. No user gets the former entries once this returns, except in a folder that a
    user holds (forgetting.py)."""
    names.forget(stale.entries)
    for inode in stale.inodes:
        with contextlib.suppress(OSError):
            pyfuse3.invalidate_inode(inode)


def room(files: int, size: int) -> StatvfsData:
    """Returns the numbers for df: all space is free."""
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
        except Exception:  # pyfuse3 would unmount; the caller gets EIO, the log the traceback
            log.exception("%s failed; please report this", handler.__name__)
            if self.strict:
                raise
            raise FUSEError(errno_of("EIO")) from None

    return guard
