"""Files of sessions through the handlers, over a real store: what can be seen, and when."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core.tree.places import HOME, MAIN, SHARED
from cortexfs.core.tree.session_places import BIT, SessionPlace
from cortexfs.sessions.layout import Address, Space
from cortexfs.tree import session_files
from tests.shell.handlers import caller, refused
from tests.shell.logreader import grown
from tests.shell.session_stores import line, run_of, store
from tests.shell.spaces import ME, MINE, Seen, address, seen, written
from tests.waiting import PATIENCE


async def test_what_is_on_disk_is_what_is_seen(tmp_path: Path) -> None:
    # abi.md 5.32
    async with seen(tmp_path) as world:
        log = await world.sessions.open(address())
        start = b'{"type":"start","id":"1","run":"r1","cwd":"/tmp"}\n'
        log.append([start, *run_of(2, "r1")[1:]])
        await log.durable(log.newest)
        names = await world.names(f"{MINE}/default")
        files = "messages.jsonl events.jsonl latest.md state cwd created_at updated_at meta.json"
        assert sorted(names) == sorted(files.split())
        for name in names:
            path = tmp_path / "sessions" / MINE / "default" / name
            assert await world.read(f"{MINE}/default/{name}") == path.read_bytes()
            entry = await world.fs.getattr(await world.find(f"{MINE}/default/{name}"), caller())
            assert (entry.st_size, entry.st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
            assert (stat.filemode(entry.st_mode), entry.st_uid) == ("-rw-------", ME)
        assert await world.read(f"{MINE}/index/list") == b"default\n"
        hashes = await world.names(f"{MINE}/index/by-cwd")
        assert await world.read(f"{MINE}/index/by-cwd/{hashes[0]}") == b"default\n"


async def test_the_other_files_are_as_new_as_the_log(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        for at, answer in enumerate(("first", "second", "third")):
            await written(world.sessions, address(), f"r{at}", answer)
            assert await world.read(f"{MINE}/default/latest.md") == answer.encode() + b"\n"
        await written(world.sessions, address("other"))
        assert await world.read(f"{MINE}/index/list") == b"other\ndefault\n"


async def test_a_done_that_is_not_on_disk_is_not_seen(tmp_path: Path) -> None:
    # abi.md 5.28
    kept = threading.Event()

    def sync(descriptor: int) -> None:
        kept.wait(PATIENCE)
        os.fsync(descriptor)

    async with store(tmp_path / "sessions", sync=sync) as sessions:
        world = Seen(tmp_path, sessions)
        try:
            log = await sessions.open(address())
            log.append(run_of(1, "r1"))
            while not log.holds_done:
                await grown(log)
            data = await world.read(f"{MINE}/default/events.jsonl")
            entry = await world.fs.getattr(await world.find(f"{MINE}/default/events.jsonl"), caller())
            assert b'"the answer"' in data
            assert b'"done"' not in data
            assert entry.st_size == len(data) < (sessions.folder(address()) / "events.jsonl").stat().st_size
            assert await world.read(f"{MINE}/default/state") == b"active\n"
        finally:
            kept.set()
        await log.durable(log.newest)
        assert b'"done"' in await world.read(f"{MINE}/default/events.jsonl")
        assert await world.read(f"{MINE}/default/state") == b"done\n"


async def test_a_line_that_a_crash_tore_is_not_seen(tmp_path: Path) -> None:
    # abi.md 5.29
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
    folder = tmp_path / "sessions" / MINE / "default"
    whole = (folder / "events.jsonl").read_bytes()
    (folder / "events.jsonl").write_bytes(whole + line(8, "user", text="torn")[:-9])
    (folder / "state").write_text("active\n")
    (tmp_path / "sessions" / "unclean.jsonl").write_bytes(msgspec.json.encode(address()) + b"\n")
    async with seen(tmp_path) as world:
        assert await world.read(f"{MINE}/default/state") == b"done\n"
        assert await world.read(f"{MINE}/default/events.jsonl") == whole


async def test_a_new_session_is_seen_at_once_by_who_looked_before(tmp_path: Path) -> None:
    # the kernel must not remember any of these folders as missing
    async with seen(tmp_path) as world:
        folder = await world.find(f"home/{ME}/model")
        with refused(errno.ENOENT):
            await world.fs.lookup(folder, b"debug", caller())
        assert await world.names(f"home/{ME}/model") == []
        await written(world.sessions, address())
        assert await world.names(f"home/{ME}/model") == ["debug"]
        sessions = await world.find(MINE)
        with refused(errno.ENOENT):
            await world.fs.lookup(sessions, b"other", caller())
        await written(world.sessions, address("other"))
        entry = await world.fs.lookup(sessions, b"other", caller())
        assert entry.entry_timeout == 0  # the session may expire
        state = await world.fs.lookup(entry.st_ino, b"state", caller())
        assert (state.entry_timeout, state.attr_timeout) == (0, 0)


async def test_the_kernel_keeps_a_listed_session_until_ls_asks_about_it(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        sessions = await world.find(MINE)
        handle = await world.fs.opendir(sessions, caller())
        inode = dict(world.fs._handles.listing(handle))["default"]
        listed = world.fs._entries.entry(inode)
        assert 0 < listed.entry_timeout < 1 == listed.attr_timeout
        assert (await world.fs.lookup(sessions, b"default", caller())).entry_timeout == 0
        await world.fs.releasedir(handle)


async def test_shared_sessions_are_the_daemons_and_everybody_reads_them(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        assert await world.names("shared/main") == []
        await written(world.sessions, Address(Space.shared(), "agent", "coder", "plan"))
        assert await world.names("shared/main") == ["agent"]
        entry = await world.fs.getattr(
            await world.find("shared/main/agent/coder.d/session/plan/state"), caller()
        )
        assert (stat.filemode(entry.st_mode), entry.st_uid) == ("-rw-r--r--", 0)
        listing = await world._listed(await world.find("shared/main/agent"))
        assert listing[1] == ("..", MAIN)
        assert (await world._listed(MAIN))[1] == ("..", SHARED)


@pytest.mark.skipif(ME != 0, reason="files of other users are made, which takes root")
async def test_a_home_is_there_for_whoever_has_sessions(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address(uid=4321))
        assert "4321" in await world.names("home")
        again = Seen(tmp_path, world.sessions)  # as after a restart, without a listing first
        entry = await again.fs.lookup(HOME, b"4321", caller(uid=1))
        assert (entry.st_uid, stat.filemode(entry.st_mode)) == (4321, "drwx------")
        for name in (b"4322", b"04321", b"x", b"99999999999"):
            with refused(errno.ENOENT):
                await again.fs.lookup(HOME, name, caller(uid=1))


async def test_inodes_are_stable_and_nothing_is_held_for_them(tmp_path: Path) -> None:
    # abi.md 1.14
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        known = world.fs._spaces._known
        first = await world.find(f"{MINE}/default/state")
        await world.fs.forget([(inode, node.users) for inode, node in list(known.items())])
        assert not known
        assert await world.find(f"{MINE}/default/state") == first
        listed = dict(await world._listed(await world.find(f"{MINE}/default")))
        assert listed["state"] == first
        assert listed[".."] == await world.find(MINE)
        assert len(set(listed.values())) == len(listed)
        await world.fs.forget([(inode, node.users) for inode, node in list(known.items())])
        assert not known


async def test_a_listing_that_is_too_much_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        folder = await world.find(f"{MINE}/default")
        held = {inode: node.users for inode, node in world.fs._spaces._known.items()}
        monkeypatch.setattr("cortexfs.tree.open_files.MAX_ENTRIES", 3)
        with refused(errno.EMFILE):
            await world.fs.opendir(folder, caller())
        assert {inode: node.users for inode, node in world.fs._spaces._known.items()} == held


# Obstacles.


async def test_a_provider_with_sessions_hides_an_alias_until_they_are_gone(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        folder = await world.find(f"home/{ME}/model")
        made = await world.fs.symlink(folder, b"debug", b"/ctx/model/debug/echo", caller())
        assert made.entry_timeout == 0
        other = await world.fs.symlink(folder, b"echo", b"/ctx/model/debug/echo", caller())
        await written(world.sessions, address())
        assert (await world.fs.lookup(folder, b"debug", caller())).st_ino & BIT
        assert sorted(await world.names(f"home/{ME}/model")) == ["debug", "echo"]
        assert await world.find(f"home/{ME}/model/echo") == other.st_ino
        await world.remove(f"home/{ME}/model/debug")
        assert await world.find(f"home/{ME}/model/debug") == made.st_ino
        await world.fs.unlink(folder, b"debug", caller())  # this removes the alias
        assert await world.gone(f"home/{ME}/model/debug")


async def test_what_is_not_of_sessions_is_not_seen_and_links_are_not_followed(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        await written(world.sessions, address("true"))
        await world.names(MINE)
        root = tmp_path / "sessions"
        folder = root / MINE
        secret = tmp_path / "secret"
        secret.mkdir()
        (secret / "state").write_text("secret")
        (secret / "session").mkdir()
        (folder / "default" / "state").unlink()
        (folder / "default" / "state").symlink_to(secret / "state")
        (folder / "default" / "meta.json").unlink()
        os.mkfifo(folder / "default" / "meta.json")
        (folder / "default" / "latest.md").unlink()
        (folder / "default" / "latest.md").mkdir()
        (folder / "default" / "other").write_text("x")
        (folder / "linked").symlink_to(secret)
        (folder / "a file").write_text("x")
        (folder / "plain").write_text("x")
        (root / f"home/{ME}/model/debug/link.d").symlink_to(secret)
        (root / f"home/{ME}/model/evil").symlink_to(root / f"home/{ME}/model/debug")
        (root / f"home/{ME}/tool").mkdir()
        assert await world.names(MINE) == ["default", "true", "index"]
        names = await world.names(f"{MINE}/default")
        assert sorted({*names} - {"cwd"}) == ["created_at", "events.jsonl", "messages.jsonl", "updated_at"]
        assert await world.names(f"home/{ME}/model") == ["debug"]
        assert await world.names(f"home/{ME}/model/debug") == ["echo.d"]
        for path in ("default/state", "default/meta.json", "default/latest.md", "linked", "plain"):
            assert await world.gone(f"{MINE}/{path}")
        assert await world.gone(f"home/{ME}/model/evil")
        assert await world.gone(f"home/{ME}/tool/x.d")
        inode = await world.find(f"{MINE}/true/state")
        (folder / "true").rename(secret / "true")
        (folder / "true").symlink_to(secret / "true")
        with refused(errno.ENOTDIR):  # the kernel does not know of the link on the way
            await world.fs.open(inode, os.O_RDONLY, caller())


# Open files.


async def test_a_reader_follows_what_grows_and_keeps_what_is_replaced(tmp_path: Path) -> None:
    # abi.md 1.17
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        at, ends = {}, {}
        for name in ("events.jsonl", "messages.jsonl", "latest.md"):
            at[name] = (await world.fs.open(await world.find(f"{MINE}/default/{name}"), 0, caller())).fh
            ends[name] = len(await world.fs.read(at[name], 0, 9999))
        await written(world.sessions, address(), "r2", "news")
        assert await world.read(f"{MINE}/default/latest.md") == b"news\n"
        for name in ("events.jsonl", "messages.jsonl"):
            assert b"news" in await world.fs.read(at[name], ends[name], 9999)
        assert await world.fs.read(at["latest.md"], 0, 9999) == b"the answer\n"
        before = len(await world.fs.read(at["messages.jsonl"], 0, 9999))
        messages = world.sessions.folder(address()) / "messages.jsonl"
        whole = messages.read_bytes()
        messages.unlink()
        messages.write_bytes(whole)
        await written(world.sessions, address(), "r3", "more")
        await world.read(f"{MINE}/default/messages.jsonl")
        assert b"more" in await world.fs.read(at["messages.jsonl"], before, 9999)
        await world.sessions.remove(address())
        assert b"more" in await world.fs.read(at["events.jsonl"], ends["events.jsonl"], 9999)
        for handle in at.values():
            await world.fs.release(handle)
        assert not world.fs._spaces._disk.held


async def test_a_part_of_it_in_memory_is_not_the_files_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 1.17; the kernel takes a short answer for the end of the file
    whole_read = os.preadv

    def half(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        size = len(buffers[0]) // 2
        return whole_read(descriptor, [memoryview(buffers[0])[:size]], offset, flags)

    async with seen(tmp_path) as world:
        log = await written(world.sessions, address(), answer="long " * 20_000)
        whole = log.path.read_bytes()
        handle = (await world.fs.open(await world.find(f"{MINE}/default/events.jsonl"), 0, caller())).fh
        monkeypatch.setattr(os, "preadv", half)
        assert await world.fs.read(handle, 0, len(whole)) == whole
        await world.fs.release(handle)


async def test_descriptors_are_bounded_however_many_files_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "HELD", 2)
    async with seen(tmp_path) as world:
        handles = {}
        for name in ("a", "b", "c", "d"):
            await written(world.sessions, address(name), answer=f"I am {name}")
            for file in ("events.jsonl", "latest.md"):
                inode = await world.find(f"{MINE}/{name}/{file}")
                handles[name, file] = (await world.fs.open(inode, os.O_RDONLY, caller())).fh
        for (name, _), handle in handles.items():
            assert f"I am {name}".encode() in await world.fs.read(handle, 0, 9999)
        await written(world.sessions, address("a"), "r2", "something else")
        await world.read(f"{MINE}/a/latest.md")
        with refused(errno.ESTALE):  # parts of the old and the new file would be wrong
            await world.fs.read(handles["a", "latest.md"], 0, 9999)
        assert b"something else" in await world.fs.read(handles["a", "events.jsonl"], 0, 9999)
        assert len(world.fs._spaces._disk.held) == 2
        async with trio.open_nursery() as nursery:  # two reads at once, of a file that is not open any more
            for _ in range(2):
                nursery.start_soon(world.fs.read, handles["b", "events.jsonl"], 0, 9999)
        for handle in handles.values():
            await world.fs.release(handle)
        assert not world.fs._spaces._disk.held


async def test_a_disk_that_hangs_holds_up_who_asks_for_sessions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # docs/design.md: "a disk that hangs holds up sessions and not the daemon"
    works = threading.Event()

    def look(root: Path, place: SessionPlace) -> None:
        works.wait(PATIENCE)

    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        folder = await world.find(f"{MINE}/default")
        monkeypatch.setattr("cortexfs.tree.session_disk.look", look)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(2 * session_files.THREADS):
                    nursery.start_soon(world.gone_in, folder, "state")
                await trio.testing.wait_all_tasks_blocked()
                assert b"uptime" in await world.read("status")
                assert await world.names("tool") == ["shell", "shell.d"]
                works.set()
        finally:
            works.set()


async def test_sessions_have_no_attributes_beside_the_usual(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        inode = await world.find(f"{MINE}/default/state")
        assert await world.fs.listxattr(inode, caller()) == []
        with refused(errno.ENODATA):
            await world.fs.getxattr(inode, b"user.cortexfs.name", caller())
