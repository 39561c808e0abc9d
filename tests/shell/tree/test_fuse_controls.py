"""Writing a control through the handlers, without a mount: the effects of a full or broken disk."""

from __future__ import annotations

import errno
import os
from typing import cast

import pyfuse3
import pytest

from cortexfs.state.control_store import ControlStore
from tests.shell import handlers
from tests.shell.handlers import Fields, World, caller, refused

world = handlers.world
RULE = b"allow coder_t tool:shell execute\n"


async def test_a_full_disk_is_said_and_the_value_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    info = await world.fs.open(await world.find("tool/shell.d/policy"), os.O_WRONLY, caller())
    await world.fs.write(info.fh, 0, RULE)
    with monkeypatch.context() as patched:
        patched.setattr(ControlStore, "put_value", full)
        with refused(errno.ENOSPC):
            await world.fs.flush(info.fh)
    assert await world.read("tool/shell.d/policy") == b""
    await world.fs.flush(info.fh)
    assert await world.read("tool/shell.d/policy") == RULE


async def test_truncate_without_an_open_counts_at_once(world: World) -> None:
    await world.put("tool/shell.d/policy", RULE * 2)
    inode = await world.find("tool/shell.d/policy")
    wanted, fields = pyfuse3.EntryAttributes(), cast(pyfuse3.SetattrFields, Fields(update_size=True))
    wanted.st_size = len(RULE)
    assert (await world.fs.setattr(inode, wanted, fields, None, caller())).st_size == len(RULE)
    assert await world.read("tool/shell.d/policy") == RULE
    wanted.st_size = 0
    with refused(errno.EINVAL):  # abi.md 3.22
        await world.fs.setattr(inode, wanted, fields, None, caller())
    assert await world.read("tool/shell.d/policy") == RULE


async def test_a_disk_that_breaks_is_heard_by_the_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 3.21
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    info = await world.fs.open(await world.find("tool/shell.d/policy"), os.O_WRONLY | os.O_TRUNC, caller())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with refused(errno.EIO):
            await world.fs.write(info.fh, 0, RULE)
    with refused(errno.EIO):  # a part of the value may be lost
        await world.fs.write(info.fh, len(RULE), RULE)
    with refused(errno.EIO):
        await world.fs.flush(info.fh)
    await world.fs.release(info.fh)
    assert await world.read("tool/shell.d/policy") == b""
    assert not list(world.state.rglob(".new*"))
    await world.put("tool/shell.d/policy", RULE)
    assert await world.read("tool/shell.d/policy") == RULE


async def test_what_is_written_into_a_removed_control_leaves_no_draft(world: World) -> None:
    info = await world.fs.open(await world.find("model/p/m.d/effort"), os.O_WRONLY | os.O_TRUNC, caller())
    await world.fs.unlink(await world.find("model/p/m.d"), b"effort", caller())
    await world.fs.write(info.fh, 0, b"low\n")
    await world.fs.flush(info.fh)
    await world.fs.release(info.fh)
    assert os.listdir(world.state / "model/p/m.d") == [".absent.effort"]
