"""Putting content in the place of a file in one step.

Rules: content goes into a draft in the same directory and to disk, and the draft then takes the
name: whoever looks sees the old file or the new one, whatever fails in between, and no draft stays.
Who may not write a file may not replace it either, although its directory would allow that.
Cleanup is written twice, as try and finally: a host raises its cancellation at any instruction, but
only once.
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

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # where link(2) is not to be had
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def resolved(path: str) -> str:
    """Where `path` leads through symbolic links, so that a link stays and its target is replaced."""
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
    """Make a file that must not exist, complete from the moment that it has its name."""

    def claim(draft: str, place: str) -> None:
        try:
            os.link(draft, place)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            opened(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL).close()  # the name is ours now
            os.replace(draft, place)

    _put(path, data, None, runtime, claim)


def put_over(
    path: str,
    data: bytes,
    old: FileIO | None,
    runtime: ToolRuntime,
    check: Callable[[str], None] = lambda path: None,
) -> None:
    """Replace the file `old`, which is open at `path`, or make one; `check` has the last word."""

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
        # What replaces a private file is private from the start; a new file gets what the umask leaves.
        with _draft(draft, place, 0o666 if old is None else 0o600, old is not None) as file:
            write_all(file, data)
            if old is not None:
                _resemble(file.fileno(), old.fileno())
            os.fsync(file.fileno())
        if runtime.cancelled:
            raise ExecutionFailed("cancelled", "ECANCELED")
        commit(draft, place)
    except OSError as error:  # of the draft, of which nobody has heard
        raise OSError(error.errno, error.strerror, place) from None
    finally:
        try:
            _discard(draft)
        finally:
            _discard(draft)


def _discard(draft: str) -> None:
    with suppress(FileNotFoundError):
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
    """Give the new file the old one's owner, mode and attributes, as far as the caller may.

    A mode means something only together with its owner and group: bits for a group that could not
    be kept would open the file to another one.
    """
    was, now = os.fstat(old), os.fstat(new)
    mode = stat.S_IMODE(was.st_mode)
    if was.st_gid != now.st_gid and not _owned(new, -1, was.st_gid):
        mode = mode & ~(stat.S_IRWXG | stat.S_ISGID) | (mode & stat.S_IRWXO) << 3
    if was.st_uid != now.st_uid and not _owned(new, was.st_uid, -1):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(new, mode)
    with suppress(OSError):  # not every filesystem has any
        for name in os.listxattr(old):
            if name != "security.capability":  # which writing takes away, too
                with suppress(OSError):
                    os.setxattr(new, name, os.getxattr(old, name))


def _owned(fd: int, uid: int, gid: int) -> bool:
    try:
        os.fchown(fd, uid, gid)
    except OSError:
        return False
    return True
