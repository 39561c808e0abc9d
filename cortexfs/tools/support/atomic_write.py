"""The replacement of a file in one step.

Rules: the content is written to a draft in the same directory and to disk, and then the draft takes the name.
A reader sees the old file or the new one, whatever fails meanwhile, and no draft stays. A user who may not
write a file may not replace it either, although the directory would allow that. Cleanup is written twice, as
try and finally: a host raises its cancellation at any instruction, but only once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

from cortexfs.sdk import ExecutionFailed, ToolRuntime
from cortexfs.tools.support.paths import MAX_LINKS, opened, shown, write_all

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # link(2) is not available
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def resolved(path: str) -> str:
    """Returns the target of `path` behind symbolic links, so that the target is replaced and not a link."""
    for _ in range(MAX_LINKS):
        try:
            target = os.readlink(path)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return path
            raise
        path = os.path.join(os.path.dirname(path), target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def put_new(path: str, data: bytes, runtime: ToolRuntime) -> None:
    """Create a file that must not exist. It has its whole content as soon as it has its name."""

    def claim(draft: str, place: str) -> None:
        try:
            os.link(draft, place)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            opened(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL).close()  # the name is reserved now
            os.replace(draft, place)

    _put(path, data, None, runtime, claim)


def put_over(
    path: str,
    data: bytes,
    old: FileIO | None,
    runtime: ToolRuntime,
    check: Callable[[str], None] = lambda path: None,
) -> None:
    """Replace the file at `path`, which is open as `old`, or create one. `check` may still refuse."""

    def move(draft: str, place: str) -> None:
        check(place)
        os.replace(draft, place)

    _put(resolved(path), data, old, runtime, move)


def _put(
    place: str,
    data: bytes,
    old: FileIO | None,
    runtime: ToolRuntime,
    commit: Callable[[str, str], None],
) -> None:
    draft = os.path.join(os.path.dirname(place), f".ctx-{os.urandom(8).hex()}.tmp")
    try:
        # The draft of an existing file starts private; a new file gets the mode that the umask leaves.
        with _draft(draft, place, 0o666 if old is None else 0o600, old is not None) as file:
            write_all(file, data)
            if old is not None:
                _resemble(file.fileno(), old.fileno())
            os.fsync(file.fileno())
        if runtime.cancelled:
            raise ExecutionFailed("cancelled", "ECANCELED")
        commit(draft, place)
    except OSError as error:  # name the file, as the caller does not know the draft
        raise OSError(error.errno, error.strerror, place) from None
    finally:
        try:
            _discard(draft)
        finally:
            _discard(draft)


def _discard(draft: str) -> None:
    with suppress(OSError):  # a read-only file system refuses that, too, and why is told already
        os.unlink(draft)


def _draft(draft: str, place: str, mode: int, replaces: bool) -> FileIO:
    try:
        return opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        if not replaces or error.errno not in _FORBIDDEN:
            raise
        raise ExecutionFailed(
            f"{shown(place)} cannot be replaced in one step, because its directory takes no new file "
            f"({error.strerror}); append to it, or write it in place with shell.exec",
            errno.errorcode[error.errno],
        ) from None


def _resemble(new: int, old: int) -> None:
    """Give the new file the owner, mode and attributes of the old one, as far as the caller may.

    A mode counts together with its owner and group: if the group cannot be kept, its bits would open the
    file to another group.
    """
    former, now = os.fstat(old), os.fstat(new)
    mode = stat.S_IMODE(former.st_mode)
    if former.st_gid != now.st_gid and not _owned(new, -1, former.st_gid):
        mode = mode & ~(stat.S_IRWXG | stat.S_ISGID) | (mode & stat.S_IRWXO) << 3
    if former.st_uid != now.st_uid and not _owned(new, former.st_uid, -1):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(new, mode)
    with suppress(OSError):  # not every file system has attributes
        for name in os.listxattr(old):
            if name != "security.capability":  # a write removes it too
                with suppress(OSError):
                    os.setxattr(new, name, os.getxattr(old, name))


def _owned(fd: int, uid: int, gid: int) -> bool:
    try:
        os.fchown(fd, uid, gid)
    except OSError:
        return False
    return True
