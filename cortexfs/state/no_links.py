"""Opening what lies in a state without following links.

Main path: `folder` yields a path of a folder of the state, `opener` opens a file, `read` gives a part of one.

Rules: a daemon of root that was taken over could have left links in its state, which lead the next command of
root's elsewhere, and could put them there meanwhile. So what is opened is what is worked in. The state itself
is named by whoever runs the command, and may be a link.
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
    """Yields a path of the folder of that name, which stays its path whatever takes its name. What is missing
    is made. Raises Fault ELOOP for a link below the base."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, part in enumerate(parts := Path(name).parts):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=held)
            with _told(base.joinpath(*parts[: depth + 1])):
                below = os.open(part, _FOLDER, dir_fd=held)
            os.close(held)
            held = below
        yield Path(f"/proc/self/fd/{held}")
    finally:
        os.close(held)


@contextlib.contextmanager
def held(path: str | Path, flags: int, above: int | None = None) -> Iterator[int]:
    """Yields a descriptor, and closes it. `above` is that of the folder from which the path leads on."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opener(path: str, flags: int) -> int:
    """Open a file that is nobody else's to read. Raises Fault ELOOP for a link."""
    with _told(Path(path)):
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def read(path: Path, start: int, most: int) -> bytes:
    """Returns the bytes of a file from there on; from so many before its end where `start` is negative.
    Raises Fault ELOOP for a link, and EINVAL for what is no file, as a pipe has its reader wait."""
    with open(opener(str(path), os.O_RDONLY), "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode):
            why = "is no regular file, and nobody has reason to put it there; remove it"
            raise Fault("EINVAL", f"{path} {why}")
        file.seek(start if start >= 0 else max(0, seen.st_size + start))
        return file.read(most)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not path.is_symlink():
            raise
        raise Fault("ELOOP", f"{path} is a link, which nobody has reason to put there; remove it") from None
