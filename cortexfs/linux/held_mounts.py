"""Ends a mount that was chosen before, even if its path leads to another one by now.

    unmount("/home/ann/ctx", device)
    abort_fuse("/home/ann/ctx", device)

Rules: a user who may write a folder above a mount can put a link in its place at any time. So the mount is
held by a descriptor and its device is compared. Nothing here asks its daemon, which may hang. For another
mount, the error is EXDEV.
This file must never know why a mount ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from cortexfs.core import mountinfo
from cortexfs.linux import syscalls


def unmount(path: str, device: int) -> None:
    """Detach the topmost mount at this path. Processes that use it keep it until they end."""
    with _held(path, device) as place:
        syscalls.unmount(place)


def abort_fuse(path: str, device: int) -> None:
    """Fail all present and future requests of the topmost FUSE mount at this path, which stays mounted."""
    with _held(path, device) as place:
        syscalls.abort_fuse(place)


@contextlib.contextmanager
def _held(path: str, device: int) -> Iterator[str]:
    """Yields a path that leads to this mount alone."""
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # O_PATH asks the daemon nothing
    try:
        lines = Path(f"/proc/self/fdinfo/{held}").read_bytes().splitlines()
        mount = dict(line.split(b":\t", 1) for line in lines)[b"mnt_id"]
        if os.makedev(*mountinfo.device_of(Path(mountinfo.TABLE).read_bytes(), mount)) != device:
            raise OSError(errno.EXDEV, "its path leads to another mount now", path)
        yield f"/proc/self/fd/{held}"
    finally:
        os.close(held)
