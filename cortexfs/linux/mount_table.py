"""The presence of our mount in the kernel's table of mounts (proc(5), mountinfo).

Rules: nothing here touches the mount itself, which may hang.
"""

from __future__ import annotations

import os
import select
from io import FileIO
from pathlib import Path

import trio

from cortexfs.core import mountinfo
from cortexfs.core.mountinfo import TABLE, escaped


def device(root: Path) -> int:
    """Returns the device number of the mount at `root`, unique while it is mounted."""
    return os.makedev(*mountinfo.device(Path(TABLE).read_bytes(), str(root)))


async def wait_until_gone(root: Path) -> None:
    """Wait until no CortexFS is mounted at `root`."""
    with FileIO(TABLE) as table, select.epoll() as changes:
        changes.register(table, select.EPOLLERR | select.EPOLLPRI)
        while _has(table.readall(), root):
            await trio.lowlevel.wait_readable(changes.fileno())
            changes.poll(0)
            table.seek(0)


def _has(table: bytes, root: Path) -> bool:
    point = escaped(str(root))
    return any(b"fuse.cortexfs" in line and line.split()[4] == point for line in table.splitlines())
