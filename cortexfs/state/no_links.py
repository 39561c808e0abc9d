"""Opening files and folders of a state without following links.

Main path: `folder` yields a path of a folder of the state, `opener` opens a file, `read` reads a part of one.

Rules: a taken-over daemon of root could put links into its state, even while a command runs, that lead root's
next command elsewhere. So a command works in the very folder or file that it has opened. The user of the
command names the state itself, which may be a link.
This file must never know what is in a state.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cortexfs.core.errors import Fault

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def folder(base: Path, name: str | Path, mode: int) -> Iterator[Path]:
    """Yields a path that leads to the folder `name` even if another one takes its name. Missing folders are
    created. Raises Fault ELOOP for a link below the base."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, part in enumerate(parts := Path(name).parts):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=held)
            with _refuse_link(base.joinpath(*parts[: depth + 1])):
                below = os.open(part, _FOLDER, dir_fd=held)
            os.close(held)
            held = below
        yield Path(f"/proc/self/fd/{held}")
    finally:
        os.close(held)


@contextlib.contextmanager
def held(path: str | Path, flags: int, above: int | None = None) -> Iterator[int]:
    """Yields a descriptor, and closes it. `above` is the descriptor of the folder where the path begins. Only
    its owner may open a new file."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opener(path: str, flags: int) -> int:
    """Open a file; only its owner may read a new one. Raises Fault ELOOP for a link."""
    with _refuse_link(Path(path)):
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def read(path: Path, start: int, most: int) -> bytes:
    """Returns up to `most` bytes of a file from `start`; a negative `start` counts from its end. Raises Fault
    ELOOP for a link, and EINVAL for anything but a regular file, as a pipe would make its reader wait."""
    with open(opener(str(path), os.O_RDONLY), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Fault("EINVAL", f"{path} is not a regular file; remove it")
        file.seek(start if start >= 0 else max(0, status.st_size + start))
        return file.read(most)


@contextlib.contextmanager
def _refuse_link(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not path.is_symlink():
            raise
        raise Fault("ELOOP", f"{path} is a link, which is refused here; remove it") from None
