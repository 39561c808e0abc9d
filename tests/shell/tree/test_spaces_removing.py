"""Sessions are removed by the names of their files, and no other change to these files is possible."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import cast

import pyfuse3
import pytest

from tests.settled import settled
from tests.shell.handlers import Fields, caller, refused
from tests.shell.logreader import Reader
from tests.shell.session_stores import line
from tests.shell.spaces import ME, MINE, address, seen, written


async def test_to_remove_the_folder_is_to_remove_the_session(tmp_path: Path) -> None:
    # abi.md 5.33
    async with seen(tmp_path) as world:
        await written(world.sessions, address("a"))
        await written(world.sessions, address("b"))
        log = await world.sessions.open(address("a"))
        reader = Reader(log)
        await world.remove(f"{MINE}/a")
        assert await reader.read() == b""
        with pytest.raises(Exception, match="removed"):
            log.append([line(99)])
        assert await world.gone(f"{MINE}/a")
        assert await world.names(MINE) == ["b", "index"]
        assert await world.read(f"{MINE}/index/list") == b"b\n"
        assert not world.sessions.folder(address("a")).exists()
        assert not world.fs._spaces._ghosts


async def test_what_is_left_of_a_session_can_be_removed_in_any_order(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        folder = await world.find(f"{MINE}/default")
        left = sorted(await world.names(f"{MINE}/default"))[1:]  # all but created_at
        await world.fs.unlink(folder, b"events.jsonl", caller())
        assert not world.sessions.folder(address()).exists()
        assert "default" in await world.names(MINE)
        left.remove("events.jsonl")
        for name in left:
            assert await world.read(f"{MINE}/default/{name}") == b""
            await world.fs.unlink(folder, name.encode(), caller())
            assert await world.gone(f"{MINE}/default/{name}")
        assert await world.names(f"{MINE}/default") == ["created_at"]
        with refused(errno.ENOENT):
            await world.fs.unlink(folder, b"state", caller())
        await world.fs.rmdir(await world.find(MINE), b"default", caller())
        assert await world.names(MINE) == ["index"]
        assert (await world.fs.getattr(folder, caller())).st_nlink == 0  # for a process that is in the folder


async def test_a_session_that_comes_back_is_another(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address(), answer="the answer " * 100)
        before = await world.find(f"{MINE}/default/events.jsonl")
        opened = await world.fs.open(before, os.O_RDONLY, caller())
        await world.fs.unlink(await world.find(f"{MINE}/default"), b"events.jsonl", caller())
        await written(world.sessions, address(), answer="another")
        assert await world.find(f"{MINE}/default/events.jsonl") != before
        assert b"another" in await world.read(f"{MINE}/default/events.jsonl")
        old = await world.fs.read(opened.fh, 0, 9999)  # an open file stays readable, as elsewhere
        assert old.count(b"the answer") == 100
        assert b'"done"' in old
        await written(world.sessions, address(), "r2", "longer than the old one " * 100)
        assert await world.fs.read(opened.fh, len(old), 9999) == b""
        assert (await world.fs.getattr(before, caller())).st_nlink == 0
        await world.fs.release(opened.fh)
        assert not world.fs._spaces._ghosts


async def test_ghosts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortexfs.tree.session_view.GHOSTS", 2)
    monkeypatch.setattr("cortexfs.tree.session_view.LIVES", 2)
    async with seen(tmp_path) as world:
        for name in ("a", "b", "c", "d", "e"):
            await written(world.sessions, address(name))
            await world.fs.unlink(await world.find(f"{MINE}/{name}"), b"events.jsonl", caller())
        assert sorted(await world.names(MINE)) == ["d", "e", "index"]
        assert len(world.fs._spaces._lives) == 2


async def test_all_sessions_of_an_object_go_with_its_folder(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        for name in ("a", "index2", "z"):
            await written(world.sessions, address(name))
        await written(world.sessions, address("a", "debug/other"))
        await world.remove(f"home/{ME}/model/debug/echo.d")
        assert await world.names(f"home/{ME}/model/debug") == ["other.d"]
        assert not (tmp_path / "sessions" / MINE).exists()
        await written(world.sessions, address("new"))
        assert await world.names(MINE) == ["new", "index"]
        assert await world.read(f"{MINE}/index/list") == b"new\n"


async def test_a_folder_whose_index_went_first_can_be_removed(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        for name in ("a", "z"):
            await written(world.sessions, address(name))
        for path in (f"{MINE}/index", f"{MINE}/a", f"{MINE}/z"):  # as `rm -r index a z` does
            await world.names(MINE)
            await world.remove(path)
        assert await world.names(MINE) == []
        await world.remove(f"home/{ME}/model/debug")


async def test_a_file_that_goes_between_look_and_open_is_missing(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        inode = await world.find(f"{MINE}/index/list")
        await settled(world.sessions)
        (tmp_path / "sessions" / MINE / "index/list").unlink()
        with refused(errno.ENOENT):
            await world.fs.open(inode, os.O_RDONLY, caller())


async def test_what_a_crash_left_half_removed_is_in_nobodys_way(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address("a"))
        await settled(world.sessions)  # the index is written a moment after a run is done
        folder = tmp_path / "sessions" / MINE
        (folder / ".removed.17.b").mkdir()
        (folder / ".removed.17.b" / "events.jsonl").write_bytes(b"x")
        (folder / "index" / ".new.list").write_bytes(b"x")
        assert await world.names(MINE) == ["a", "index"]
        await world.remove(MINE)
        assert not folder.exists()


async def test_a_file_that_is_made_from_the_log_comes_back_with_the_next_message(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        for path in ("default/messages.jsonl", "default/state", "index/list", "index/current"):
            await world.remove(f"{MINE}/{path}")
            assert await world.gone(f"{MINE}/{path}")
        await written(world.sessions, address(), "r2")
        assert (await world.read(f"{MINE}/default/messages.jsonl")).count(b"\n") == 4
        assert await world.read(f"{MINE}/index/list") == b"default\n"


async def test_a_folder_with_a_session_in_it_is_not_empty(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        above = await world.find(MINE)
        with refused(errno.ENOTEMPTY):
            await world.fs.rmdir(above, b"default", caller())
        await world.fs.unlink(await world.find(f"{MINE}/default"), b"events.jsonl", caller())
        await world.remove(f"{MINE}/index")
        with refused(errno.ENOTEMPTY):  # the ghost session is there
            await world.fs.rmdir(await world.find(f"home/{ME}/model/debug/echo.d"), b"session", caller())


@pytest.mark.parametrize("path", [f"{MINE}/default", MINE, f"home/{ME}/model/debug", f"home/{ME}/model"])
async def test_nothing_can_be_made_or_moved(tmp_path: Path, path: str) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        fs, folder = world.fs, await world.find(path)
        name = (await world.names(path))[0].encode()
        who, alias = caller(), path.endswith("model")
        with refused(errno.EROFS):
            await fs.create(folder, b"x", 0o100600, os.O_WRONLY, who)
        with refused(errno.EROFS):
            await fs.mkdir(folder, b"x", 0o700, who)
        with refused(errno.EROFS):
            await fs.mknod(folder, b"x", stat.S_IFSOCK | 0o600, 0, who)
        if path != MINE:  # only a session can be renamed
            with refused(errno.EROFS):
                await fs.rename(folder, name, folder, b"x", 0, who)
        with refused(errno.EROFS):
            await fs.rename(await world.find(f"home/{ME}/agent"), b"x", folder, name, 0, who)
        if not alias:
            for refusal in (
                fs.symlink(folder, b"x", b"y", who),
                fs.unlink(folder, b".run.sock", who),
                fs.setattr(
                    folder, pyfuse3.EntryAttributes(), cast(pyfuse3.SetattrFields, Fields()), None, who
                ),
            ):
                with refused(errno.EROFS):
                    await refusal


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
async def test_nothing_can_be_written(tmp_path: Path, flags: int) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        for name in ("events.jsonl", "state"):
            with refused(errno.EROFS):
                await world.fs.open(await world.find(f"{MINE}/default/{name}"), flags, caller())
