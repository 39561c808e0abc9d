"""Stands for a daemon: mounts one directory with a `status`, and stops on SIGTERM or not.

Run as a program: `python -m tests.shell.cli_fuse ROOT`. With "deaf" it ignores SIGTERM, with "alone" it has
no starter, and with "pid=NUMBER" it says that it is another process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT_INODE, STATUS_INODE = 1, 2


@contextlib.contextmanager
def served(root: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process that serves a mount at `root`. In the end both are gone."""
    root.mkdir()
    command = [sys.executable, "-m", "tests.shell.cli_fuse", str(root), *words]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        subprocess.run(["umount", "-l", str(root)], stderr=subprocess.DEVNULL, check=False)


def serve(root: str, *words: str) -> None:
    import pyfuse3
    import trio

    from cortexfs.pool.starter import Starter
    from cortexfs.pool.starter_ends import begin

    places = Path(root), Path(f"{root}.state"), Path(f"{root}.config")
    starters = [] if "alone" in words else [Starter(begin(*places))]  # it ends when not held here
    for starter in starters:
        starter.first()  # it has its name before it answers
    pid = next((word.partition("=")[2] for word in words if word.startswith("pid=")), os.getpid())
    text = f"version: 0\npid: {pid}\nmount: {root}\n".encode()

    class Tiny(pyfuse3.Operations):
        async def lookup(self, parent: int, name: bytes, ctx: object = None) -> pyfuse3.EntryAttributes:
            if name != b"status":
                raise pyfuse3.FUSEError(errno.ENOENT)
            return await self.getattr(STATUS_INODE)

        async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
            entry = pyfuse3.EntryAttributes()
            entry.st_ino = inode
            entry.st_mode = stat.S_IFDIR | 0o755 if inode == ROOT_INODE else stat.S_IFREG | 0o444
            entry.st_size = len(text)
            return entry

        async def opendir(self, inode: int, ctx: object) -> int:
            return inode

        async def readdir(self, handle: int, start: int, token: pyfuse3.ReaddirToken) -> None:
            return

        async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
            return pyfuse3.FileInfo(fh=inode, direct_io=True)

        async def read(self, handle: int, start: int, size: int) -> bytes:
            return text[start : start + size]

    async def main() -> None:
        stops = {signal.SIGHUP} if "deaf" in words else {signal.SIGTERM}
        if "deaf" in words:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            with trio.open_signal_receiver(*stops) as received:
                print("ready", flush=True)
                async for _ in received:
                    break
            nursery.cancel_scope.cancel()

    pyfuse3.init(Tiny(), root, {"fsname=cortexfs", "subtype=cortexfs"})
    try:
        trio.run(main)
    finally:
        pyfuse3.close(unmount=True)
        for starter in starters:
            starter.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
