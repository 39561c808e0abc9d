"""A mount in which questions wait: `python -m tests.mounted.waiting_mount ROOT`.

Attributes of `waits-N` are told when those of `go` were asked for, of `turns` after a thousand turns of the
loop, of all else at once. After those of `vanishes` a request is looked for, found, and gone before it is
read; the loop says "goes on" then. It says "ready", and ends with its mount.
"""

from __future__ import annotations

import errno
import stat
import sys

import pyfuse3
import trio

from cortexfs.tree import readers


def attributes(inode: int) -> pyfuse3.EntryAttributes:
    """They are asked for each time, and the name is kept."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(inode)
    entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR if inode == pyfuse3.ROOT_INODE else stat.S_IFREG)
    entry.entry_timeout, entry.attr_timeout = 3600, 0
    return entry


class Waiting(pyfuse3.Operations):
    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.names: list[bytes] = [b"", b"the root"]  # by inode

    async def lookup(self, parent: int, name: bytes, ctx: object = None) -> pyfuse3.EntryAttributes:
        """At once, as the kernel asks for one name of a folder after the other."""
        if name == b"missing":
            raise pyfuse3.FUSEError(errno.ENOENT)
        if name not in self.names:
            self.names.append(name)
        return attributes(self.names.index(name))

    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        name = self.names[inode]
        if name.startswith(b"waits"):
            await self.go.wait()
        elif name == b"turns":
            for _ in range(1000):
                await trio.lowlevel.checkpoint()
        elif name == b"go":
            self.go.set()
        elif name == b"vanishes":
            VanishingRequests.is_next = True
        return attributes(inode)


class VanishingRequests(readers.KernelRequests):
    is_next = False

    async def have_come(self, channel: int) -> None:
        if not VanishingRequests.is_next:
            return await super().have_come(channel)
        VanishingRequests.is_next = False
        trio.lowlevel.spawn_system_task(goes_on)


async def goes_on() -> None:
    print("goes on", flush=True)


async def serve() -> None:
    readers.KernelRequests = VanishingRequests  # type: ignore[misc]
    print("ready", flush=True)
    await readers.serve()


if __name__ == "__main__":
    pyfuse3.init(Waiting(), sys.argv[1], {"fsname=cortexfs", "subtype=cortexfs"})
    try:
        trio.run(serve)
    finally:
        pyfuse3.close(unmount=False)
