"""Files that exist as a whole or not at all, whenever the process or the machine stops.

Main path: `replace` replaces a file, `create` makes a file whose name is free, `append` appends to a file.

Rules: content goes into a draft in the same folder and to the disk, the draft takes the name, and then the
folder goes to the disk too. A draft is a new file, so that no link is followed and no older mode counts. A
failed write removes its draft. The draft of a killed process stays, hidden. If the draft has a fixed name,
the next writer of that file removes it; only one writer at a time may use such a name.
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
    """Replace a file. Readers of the old file keep it. `name` is the draft's."""
    with draft(path, name) as new:
        write(new, pieces, mode, exact=exact, durable=durable)
        move(new, path, durable=durable)


def create(path: Path, pieces: Iterable[bytes], mode: int) -> None:
    """Create a file. Raises FileExistsError if its name is taken."""
    with draft(path) as new:
        write(new, pieces, mode)
        os.link(new, path)
        new.unlink()
        sync(path.parent)


def link(path: Path, target: bytes, name: str = "") -> None:
    """Replace a file or link by a symbolic link."""
    with draft(path, name) as new:
        os.symlink(target, os.fsencode(new))
        move(new, path)


@contextlib.contextmanager
def draft(path: Path, name: str = "") -> Iterator[Path]:
    """Yields a path for a draft of `path`, and removes the draft if the writer fails."""
    # Not the pid: other threads have the same, and so may processes in other containers.
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
    """Create a file of this mode, without the bits of the umask unless the mode is `exact`."""
    with open(os.open(path, _MAKING, mode), "wb") as file:
        file.writelines(pieces)
        file.flush()
        if exact:
            believed.set_mode(file.fileno(), mode)
        if durable:
            os.fsync(file.fileno())


def append(descriptor: int, data: bytes, end: int) -> None:
    """Write all data at `end`, which is the file's end. On failure the file ends there again."""
    try:
        write_at(descriptor, data, end)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk can still shorten a file
            os.ftruncate(descriptor, end)
        raise


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def private(path: str, flags: int) -> int:
    """Open a file, without waiting for a pipe. A new file is readable by its owner alone."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def move(new: Path, path: Path, *, durable: bool = True) -> None:
    """Let a draft take its name."""
    new.replace(path)
    if durable:
        sync(path.parent)


def sync(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    with no_links.held(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # this file system can sync files only
                raise
