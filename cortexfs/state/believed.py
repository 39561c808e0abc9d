"""Reading the files that decide: the configuration, and the parts of the state that say what is allowed.

Main path: `read` returns the bytes of a file that only this user and root can have written.

Rules: this user or root owns the file, each link to it, and each folder that holds one of these. Nobody else
may write them; for a folder, a sticky bit is enough. This user or root also owns all folders above, where a
group may write: with a umask of 002 the group is its user's own. Above, the owner of "/" counts as root, as
root may have no number in a user namespace. The checked file is the one that is read. If others may remove a
file, its absence is not believed either. A refused file allows nothing; its reader says what follows.
This file must never know what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from cortexfs.core.errors import Fault, os_faults

OTHERS = stat.S_IWGRP | stat.S_IWOTH  # with an ACL, the group's bits cover all its entries (acl(5))
MAX_LINKS = 40  # as in the kernel (path_resolution(7))
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UntrustedFile(Fault):
    """Others could have written the file."""


@contextlib.contextmanager
def opened(path: Path, others: int = OTHERS, uid: int | None = None) -> Iterator[BinaryIO]:
    """Yields the file if it has none of the mode bits `others` and belongs to `uid` or root. Without `uid`,
    ours counts. Raises UntrustedFile or OSError."""
    owner = os.geteuid() if uid is None else uid
    try:
        descriptor = _open(path, owner)
    except FileNotFoundError:
        if not path.is_symlink():
            raise
        why = "it is a link to a missing file; remove the link, or create the file"
        raise UntrustedFile("ENOENT", f"{path} is not used: {why}") from None
    with open(descriptor, "rb") as found:
        status = os.fstat(found.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFile("EINVAL", f"{path} is not used: it is no regular file; remove it")
        _check_owner(path, status, owner)
        if status.st_mode & others:
            why = "users other than its owner may write it; check its content, then: chmod go-w"
            raise UntrustedFile("EPERM", f"{path} is not used: {why} {path}")
        yield found


def read(path: Path, most: int) -> bytes:
    """Returns the first bytes of the file, one more than `most` if there are more."""
    with opened(path) as found:
        return found.read(most + 1)


def content_of(path: Path, most: int, kind: str) -> bytes | None:
    """Returns the whole file, or None if it is missing. Raises Fault if it cannot be read, and EMSGSIZE if it
    is longer than `most`. `kind` names its kind in that error."""
    with os_faults(f"{path} cannot be read"):
        try:
            data = read(path, most)
        except FileNotFoundError:
            return None
    if len(data) > most:
        raise Fault("EMSGSIZE", f"{path} is over {most >> 20} MiB, too much for this file ({kind})")
    return data


def secret(path: Path, most: int, subject: str, mend: str) -> bytes:
    """Returns the same as `read`, for a file that only its owner may read. Raises Fault EACCES if others may;
    `subject` begins that error and ends with a verb."""
    with opened(path, others=0) as found:  # the mode is checked here, with an error of its own
        if (mode := stat.S_IMODE(os.fstat(found.fileno()).st_mode)) & 0o077:
            raise Fault("EACCES", f"{subject} open to others (mode {mode:04o}); {mend}")
        return found.read(most + 1)


def folder(path: Path) -> None:
    """Raises UntrustedFile if others may change the folder's content."""
    held = _open(path, os.geteuid(), _FOLDER)
    try:
        _check_folder(path, os.fstat(held), os.geteuid())
    finally:
        os.close(held)


def link(path: Path) -> None:
    """Raises UntrustedFile if others own the link or may replace it. Its target is not checked."""
    folder(path.parent)
    folder(path.parent.parent)
    _check_owner(path, path.lstat(), os.geteuid())


def file(path: Path) -> None:
    """Raises UntrustedFile if the file is not used."""
    with opened(path):
        pass


def faults(paths: Iterable[Path], check: Callable[[Path], None] = file) -> list[str]:
    """Returns a sentence for each of these paths that is not used."""
    found: dict[str, None] = {}  # files in one folder may all have the same sentence
    for path in paths:
        try:
            with contextlib.suppress(OSError):
                check(path)
        except UntrustedFile as fault:
            found[fault.message] = None
    return list(found)


def set_mode(path: Path | int, mode: int) -> None:
    """Set that mode, whatever the umask is. With the umask of root's daemon, there is nothing to change."""
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def _open(path: Path | str, owner: int, flags: int = _FILE) -> int:
    """Returns a descriptor of the path's target, after a check of each step of the path."""
    names = _names(str(path) if os.path.isabs(path) else os.path.join(os.getcwd(), path))
    place, held, links = "/", os.open("/", _FOLDER), 0
    top = os.fstat(held).st_uid
    while names:
        name = names.pop()
        try:
            if names or flags == _FOLDER:
                _check_above(place, os.fstat(held), {0, owner, top})
            else:
                _check_folder(place, os.fstat(held), owner)
            place = os.path.join(place, name)
            status = os.stat(name, dir_fd=held, follow_symlinks=False)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link or not names:
                _check_owner(place, status, owner)  # before opening, which may fail
            if (links := links + is_link) > MAX_LINKS:
                raise UntrustedFile("ELOOP", f"{path} leads over {MAX_LINKS} links; put the file there")
            if is_link:
                names += _names(os.path.join(os.path.dirname(place), os.readlink(name, dir_fd=held)))
                place = "/"
            following = os.open(place if is_link else name, _FOLDER if names else flags, dir_fd=held)
        finally:
            os.close(held)
        held = following
    return held


def _names(path: str) -> list[str]:
    """Returns the names in a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _check_above(path: str, status: os.stat_result, owners: set[int]) -> None:
    if status.st_uid not in owners:
        why = f"it belongs to uid {status.st_uid}; use a directory whose parents are all yours or root's"
        raise UntrustedFile("EPERM", f"nothing in {path} is used: {why}")
    _check_mode(path, status, stat.S_IWOTH)


def _check_folder(path: Path | str, status: os.stat_result, owner: int) -> None:
    _check_owner(path, status, owner)
    _check_mode(path, status, OTHERS)


def _check_mode(path: Path | str, status: os.stat_result, others: int) -> None:
    if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
        why = "users other than its owner may write it; check its files, then: chmod go-w"
        raise UntrustedFile("EPERM", f"nothing in {path} is used: {why} {path}")


def _check_owner(path: Path | str, status: os.stat_result, owner: int) -> None:
    if status.st_uid not in (0, owner):
        mend = f"check its content, then: chown -h {owner} {path}"
        raise UntrustedFile("EPERM", f"{path} is not used: it belongs to uid {status.st_uid}; {mend}")
