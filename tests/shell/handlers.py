"""The handlers of the tree without a mount: called as pyfuse3 calls them, over a state of the test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from pyfuse3 import FUSEError, RequestContext

from cortexfs.core.registry import Object, Registry
from cortexfs.core.tree.places import ROOT, Stale
from cortexfs.state.control_store import ControlStore
from cortexfs.state.run_logs import Logs
from cortexfs.tree.fuse import Filesystem
from tests.no_sessions import NoSessions

SECOND = 1_000_000_000


class Caller(NamedTuple):
    uid: int = 0
    gid: int = 0
    pid: int = 1
    umask: int = 0o22


def caller(uid: int = 0, pid: int = 1) -> RequestContext:
    return cast(RequestContext, Caller(uid=uid, gid=uid, pid=pid))


class Fields(NamedTuple):
    """The fields argument of setattr: the attributes that are to be set."""

    update_atime: bool = False
    update_mtime: bool = False
    update_ctime: bool = False
    update_mode: bool = False
    update_uid: bool = False
    update_gid: bool = False
    update_size: bool = False


class NoLogs(Logs):
    def __init__(self) -> None:
        self.root = Path("/dev/null")  # no user has logs

    def stat(self, class_: str, name: str) -> tuple[int, float]:
        return 5, 7.0

    def read(self, class_: str, name: str, offset: int, size: int) -> bytes:
        return b"12345"[offset : offset + size]

    def settle(self, uid: int) -> None:
        pass


class World:
    """A Filesystem with its own clock, and a record of the entries that the kernel was told to forget."""

    def __init__(self, state: Path) -> None:
        self.now = 1_000 * SECOND
        self.renderings = 0
        self.forgotten: list[Stale] = []
        self.state = state
        self.fs = self.again()

    def again(self) -> Filesystem:
        self.fs = Filesystem(
            store=ControlStore(self.state),
            logs=NoLogs(),
            sessions=NoSessions(),
            status=self.status,
            shebang=b"#!/runner\n",
            bin_targets={"ctx": "/usr/bin/ctx"},
            owner=(0, 0),
            clock=lambda: self.now,
            forget=self.forgotten.append,
        )
        self.fs.load(registry("shell", "fs.read"))
        return self.fs

    def status(self) -> str:
        self.renderings += 1
        return "uptime: " + "x" * self.renderings

    async def find(self, path: str) -> int:
        inode: int = ROOT
        for name in path.split("/"):
            entry = await self.fs.lookup(inode, name.encode(), caller())
            assert entry.st_ino, path
            inode = entry.st_ino
        return inode

    async def read(self, path: str) -> bytes:
        info = await self.fs.open(await self.find(path), os.O_RDONLY, caller())
        data = await self.fs.read(info.fh, 0, 1 << 20)
        await self.fs.release(info.fh)
        return data

    async def put(self, path: str, data: bytes) -> None:
        info = await self.fs.open(await self.find(path), os.O_WRONLY | os.O_TRUNC, caller())
        try:
            await self.fs.write(info.fh, 0, data)
            await self.fs.flush(info.fh)
        finally:
            await self.fs.release(info.fh)


def registry(*tools: str, status: str = "ready") -> Registry:
    model = Object(class_="model", name="p/m", description="", extra={"driver": "a"})
    objects = [Object(class_="tool", name=name, description="", status=status) for name in tools]
    return Registry({object_.key: object_ for object_ in (*objects, model)})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refused(code: int) -> pytest.RaisesExc[FUSEError]:
    return pytest.raises(FUSEError, check=lambda error: error.errno == code)
