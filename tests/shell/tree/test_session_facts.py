"""`session/.facts`: a line about each session of an object, generated as it is read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.tree import open_files, session_disk
from cortexfs.tree.session_files import FactsFile
from tests.shell.handlers import caller, refused
from tests.shell.session_stores import store
from tests.shell.spaces import MINE, Seen, address, seen, written


async def facts(world: Seen, size: int = 1 << 20) -> list[dict[str, Any]]:
    """Read the file as cat does, in pieces of `size`."""
    info = await world.fs.open(await world.find(f"{MINE}/.facts"), os.O_RDONLY, caller())
    assert info.nonseekable
    data = b""
    while piece := await world.fs.read(info.fh, len(data), size):
        data += piece
    await world.fs.release(info.fh)
    return [json.loads(line) for line in data.splitlines()]


async def test_each_session_has_a_line_newest_first(tmp_path: Path) -> None:
    # abi.md 5.32
    async with seen(tmp_path) as world:
        for name in ("one", "two", "three"):
            await written(world.sessions, address(name), f"r{name}")
        await written(world.sessions, address("two"), "again")
        told = await facts(world)
        assert [each["session"] for each in told] == ["two", "three", "one"]
        for each in told:
            log = (tmp_path / "sessions" / MINE / each["session"] / "events.jsonl").stat()
            assert (each["size"], each["updated"]) == (log.st_size, log.st_mtime)
            meta = json.loads((tmp_path / "sessions" / MINE / each["session"] / "meta.json").read_bytes())
            assert (each["state"], each["messages"]) == (meta["state"], meta["messages"])
        assert ".facts" not in await world.names(MINE)
        assert (await world.fs.getattr(await world.find(f"{MINE}/.facts"), caller())).st_mode == 0o100600


async def test_it_is_made_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_disk, "NAMES", 64)
    async with seen(tmp_path) as world:
        for number in range(40):
            await written(world.sessions, address(f"s{number:02}"), f"r{number}")
        whole = [f"s{number:02}" for number in reversed(range(40))]
        for size in (1 << 20, 100, 7):
            assert [each["session"] for each in await facts(world, size)] == whole
        info = await world.fs.open(await world.find(f"{MINE}/.facts"), os.O_RDONLY, caller())
        first = await world.fs.read(info.fh, 0, 50)
        assert await world.fs.read(info.fh, 0, 50) == first  # a read that was interrupted is repeated
        with refused(errno.ESPIPE):
            await world.fs.read(info.fh, 1 << 20, 50)


async def test_what_another_life_left_and_what_is_damaged(tmp_path: Path) -> None:
    async with store(tmp_path / "sessions") as sessions:
        for name in ("a", "b", "c", "d"):
            await written(sessions, address(name), f"r{name}")
    folder = tmp_path / "sessions" / MINE
    for path in (folder / "index").rglob("*"):
        if path.is_file():
            path.unlink()
    (folder / "b/meta.json").write_text("{")
    (folder / "c/meta.json").unlink()
    (folder / "c/meta.json").symlink_to(folder / "a/meta.json")
    (folder / "d/events.jsonl").unlink()
    (folder / "e").symlink_to("a")
    os.utime(folder / "a/events.jsonl", (9, 9))
    async with seen(tmp_path) as world:
        told = await facts(world)
        assert {each["session"]: (each["state"], each["messages"]) for each in told} == {
            "a": ("done", 2),
            "b": ("idle", 0),
            "c": ("idle", 0),
        }
        assert told[-1]["session"] == "a"


async def test_a_list_that_was_put_away_is_believed_until_something_came_or_went(tmp_path: Path) -> None:
    # "of 100,000 [...] the first page at once"
    async with store(tmp_path / "sessions") as sessions:
        for name in ("a", "b", "c"):
            await written(sessions, address(name), f"r{name}")
    folder = tmp_path / "sessions" / MINE
    for name, moment in (("a", 8), ("b", 9), ("c", 7)):  # for a reader that looks at the logs
        os.utime(folder / name / "events.jsonl", (moment, moment))
    put_away, looked_at = ["c", "b", "a"], ["b", "a", "c"]
    for changed, marks, found in ((9, b"", put_away), (9, b"?", put_away), (1 << 32, b"", looked_at)):
        os.utime(folder, (changed, changed))
        (tmp_path / "sessions/unclean.jsonl").write_bytes(marks)
        async with seen(tmp_path) as world:
            assert [each["session"] for each in await facts(world)] == found


async def test_a_list_is_not_believed_after_a_hard_end(tmp_path: Path) -> None:
    async with store(tmp_path / "sessions") as sessions:
        for name in ("a", "b"):
            await written(sessions, address(name), f"r{name}")
    folder = tmp_path / "sessions" / MINE
    for name, moment in (("a/events.jsonl", 9), ("b/events.jsonl", 8), (".", 9)):
        os.utime(folder / name, (moment, moment))
    (tmp_path / "sessions/unclean.jsonl").write_bytes(msgspec.json.encode(address("a")))
    async with seen(tmp_path) as world:
        assert [each["session"] for each in await facts(world)] == ["a", "b"]


async def test_without_sessions_there_is_none(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address(), "r")
        await world.sessions.remove(address())
        assert await facts(world) == []


async def test_each_open_keeps_a_bounded_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A piece of names may have thousands of sessions, each with a directory of 4 KiB.
    monkeypatch.setattr(session_disk, "LINES", 300)
    async with seen(tmp_path) as world:
        for number in range(40):
            await written(world.sessions, address(f"s{number:02}"), f"r{number}")
        info = await world.fs.open(await world.find(f"{MINE}/.facts"), os.O_RDONLY, caller())
        await world.fs.read(info.fh, 0, 1)
        kept = world.fs._handles.find(info.fh)
        assert isinstance(kept, FactsFile)
        assert 300 <= len(kept._lines) < 500
        assert [each["session"] for each in await facts(world)] == [f"s{n:02}" for n in reversed(range(40))]


async def test_a_user_takes_no_descriptors_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 5.41; each open has a descriptor of the daemon's, which then accepts no connection
    monkeypatch.setattr(open_files, "MAX_OF_HOME", 3)
    async with seen(tmp_path) as world:
        await written(world.sessions, address("one"), "r1")
        file = await world.find(f"{MINE}/.facts")
        handles = [(await world.fs.open(file, os.O_RDONLY, caller())).fh for _ in range(3)]
        held = len(os.listdir("/proc/self/fd"))
        with refused(errno.EMFILE):
            await world.fs.open(file, os.O_RDONLY, caller())
        await world.fs.open(file, os.O_RDONLY, caller(4321))
        assert len(os.listdir("/proc/self/fd")) == held
        for handle in handles:
            await world.fs.read(handle, 0, 10)
            await world.fs.release(handle)
        assert len(await facts(world)) == 1
        assert len(os.listdir("/proc/self/fd")) == held
