"""Helpers that the tests of session files share: the handlers over a real store."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyfuse3

from cortexfs.core.tree.places import ROOT
from cortexfs.sessions.file_log import FileLog
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.store import Sessions
from cortexfs.state.control_store import ControlStore
from cortexfs.tree.fuse import Filesystem
from tests.shell.handlers import NoLogs, World, caller, registry
from tests.shell.session_stores import run_of, store

ME = os.getuid()
MINE = f"home/{ME}/model/debug/echo.d/session"
SECOND = 1_000_000_000


def address(session: str = "default", object: str = "debug/echo", uid: int = ME) -> Address:
    return Address(Space.private(uid), "model", object, session)


class Seen(World):
    """The handlers over a store of sessions."""

    def __init__(self, state: Path, sessions: Sessions) -> None:
        self.sessions = sessions
        super().__init__(state)

    def again(self) -> Filesystem:
        self.fs = Filesystem(
            store=ControlStore(self.state / "tree"),
            logs=NoLogs(),
            sessions=self.sessions,
            status=self.status,
            shebang=b"#!/runner\n",
            bin_targets={},
            owner=(0, 0),
            clock=lambda: self.now,
            forget=self.forgotten.append,
        )
        self.fs.load(registry("shell"))
        return self.fs

    async def names(self, path: str) -> list[str]:
        listing = await self._listed(await self.find(path) if path else ROOT)
        return [name for name, _ in listing if name not in (".", "..")]

    async def _listed(self, inode: int) -> list[tuple[str, int]]:
        handle = await self.fs.opendir(inode, caller())
        listing = list(self.fs._handles.listing(handle))
        await self.fs.releasedir(handle)
        return listing

    async def remove(self, path: str) -> None:
        """Remove as `rm -r` does: list each folder once, then remove its entries without another look."""
        above, _, name = path.rpartition("/")
        await self._remove(await self.find(above), name)

    async def _remove(self, above: int, name: str) -> None:
        entry = await self.fs.lookup(above, name.encode(), caller())
        if not stat.S_ISDIR(entry.st_mode):
            await self.fs.unlink(above, name.encode(), caller())
            return
        for child, _ in (await self._listed(entry.st_ino))[2:]:
            await self._remove(entry.st_ino, child)
        await self.fs.rmdir(above, name.encode(), caller())

    async def gone(self, path: str) -> bool:
        above, _, name = path.rpartition("/")
        return await self.gone_in(await self.find(above), name)

    async def gone_in(self, folder: int, name: str) -> bool:
        try:
            entry = await self.fs.lookup(folder, name.encode(), caller())
        except pyfuse3.FUSEError as error:
            if error.errno != errno.ENOENT:
                raise
            return True
        return not entry.st_ino


@asynccontextmanager
async def seen(state: Path) -> AsyncIterator[Seen]:
    async with store(state / "sessions") as sessions:
        yield Seen(state, sessions)


async def written(sessions: Sessions, where: Address, run: str = "r1", answer: str = "the answer") -> FileLog:
    log = await sessions.open(where)
    log.append(run_of(log.newest + 1, run, answer=answer))
    await log.durable(log.newest)
    return log
