"""Files that are there as a whole or not at all, whenever the process or the machine stops.

Main path: `replace` puts a file in the place of what is there, `create` makes one where nothing is.

Rules: content goes into a draft in the same folder and to the disk, the draft takes the name, and then the
folder goes to the disk too. A draft is a new file, so that no link is followed and no older mode counts. It
goes with whoever fails. What a killed process leaves is hidden; the next to write that file removes it, if
the draft was given a name, which only one writer at a time may use.
This file must never know what is in a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cortexfs.state import believed, no_links

_MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(
    path: Path,
    pieces: Iterable[bytes],
    mode: int,
    *,
    exact: bool = False,
    name: str = "",
    durable: bool = True,
) -> None:
    """Put a file in the place of another. Readers of the old one keep it. `name` is the draft's."""
    with draft(path, name) as new:
        write(new, pieces, mode, exact=exact, durable=durable)
        move(new, path, durable=durable)


def create(path: Path, pieces: Iterable[bytes], mode: int) -> None:
    """Make a file. Raises FileExistsError where its name is taken."""
    with draft(path) as new:
        write(new, pieces, mode)
        os.link(new, path)
        new.unlink()
        sync(path.parent)


def link(path: Path, target: bytes, name: str = "") -> None:
    """Put a symbolic link in the place of what is there."""
    with draft(path, name) as new:
        os.symlink(target, os.fsencode(new))
        move(new, path)


@contextlib.contextmanager
def draft(path: Path, name: str = "") -> Iterator[Path]:
    """Yields where a draft for `path` may be made, and removes the draft of whoever fails."""
    # Not the number of the process: other threads have it, and processes in other containers.
    new = path.with_name(name or f".{path.name}.{os.urandom(8).hex()}")
    new.unlink(missing_ok=True)
    try:
        yield new
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write(
    path: Path, pieces: Iterable[bytes], mode: int, *, exact: bool = False, durable: bool = True
) -> None:
    """Make a file of this mode, less what the umask takes unless it is to be `exact`."""
    with open(os.open(path, _MAKING, mode), "wb") as file:
        file.writelines(pieces)
        file.flush()
        if exact:
            believed.set_mode(file.fileno(), mode)
        if durable:
            os.fsync(file.fileno())


def private(path: str, flags: int) -> int:
    """Open a file that grows, which is made for its owner alone."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def move(new: Path, path: Path, *, durable: bool = True) -> None:
    """Let a draft take its name."""
    new.replace(path)
    if durable:
        sync(path.parent)


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    with no_links.held(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # of a file system that has this for files alone
                raise
