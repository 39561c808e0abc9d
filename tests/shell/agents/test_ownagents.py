"""Users' own agents through the handlers: how they are made, edited and removed, with sessions and limits."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cortexfs.agents import records
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key, Object, Registry
from cortexfs.core.tree import edits, places
from cortexfs.sessions.layout import Address, Space
from cortexfs.state.control_store import ControlStore
from cortexfs.tree import home_objects, open_files, writes
from cortexfs.tree.fuse import Filesystem
from tests.shell.handlers import Fields, NoLogs, caller, refused, registry
from tests.shell.session_stores import store
from tests.shell.spaces import Seen, written

UID = os.getuid()
AGENTS = f"home/{UID}/agent"
KEY: Key = ("agent", f"home/{UID}/mine")
CODER = Object(class_="agent", name="coder", description="")


class Homes(Seen):
    """The handlers over a state in which users may make agents."""

    def again(self) -> Filesystem:
        self.dropped: list[Key] = []
        of_all = registry("shell", "fs.read").objects
        self.fs = Filesystem(
            store=ControlStore(self.state / "tree"),
            logs=NoLogs(),
            sessions=self.sessions,
            status=self.status,
            shebang=b"#!/runner\n",
            bin_targets={},
            owner=(0, 0),
            state=self.state,
            forgotten=self.dropped.append,
            clock=lambda: self.now,
            forget=self.forgotten.append,
        )
        self.fs.load(Registry({**of_all, CODER.key: CODER}))
        return self.fs

    async def make(self, name: str) -> int:
        folder = await self.find(AGENTS)
        info, entry = await self.fs.create(folder, name.encode(), 0o644, os.O_WRONLY, caller(UID))
        await self.fs.release(info.fh)
        return int(entry.st_ino)

    async def unlink(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        await self.fs.unlink(await self.find(above), name.encode(), caller(UID))


@asynccontextmanager
async def homes(state: Path) -> AsyncIterator[Homes]:
    async with store(state) as sessions:
        yield Homes(state, sessions)


def in_home(name: str, session: str = "default") -> Address:
    return Address(Space.private(UID), "agent", name, session)


async def test_a_file_makes_it_and_its_removal_ends_it(tmp_path: Path) -> None:
    # abi.md 1.10
    async with homes(tmp_path) as world:
        told: list[Key] = []
        world.fs.on_change(told.append)
        inode = await world.make("mine")
        assert sorted(await world.names(AGENTS)) == ["mine", "mine.d", "mine.sock"]
        found = world.fs.object_of(inode, UID)
        assert found
        assert (found.path, found.home, told) == (f"{AGENTS}/mine", UID, [KEY])
        assert await world.read(f"{AGENTS}/mine.d/model") == b"main\n"
        assert await world.read(f"{AGENTS}/mine.d/tools") == b""
        assert await world.read(f"{AGENTS}/mine.d/policy") == b"allow mine_t model:main use\n"
        assert await world.read(f"{AGENTS}/mine.d/uid") == f"{UID}\n".encode()
        await world.unlink(f"{AGENTS}/mine")
        assert await world.names(AGENTS) == []
        assert await world.gone(f"{AGENTS}/mine.d")
        assert (world.dropped, records.load_own(tmp_path)) == ([KEY], [])


async def test_touch_may_set_the_times_of_what_it_has_made(tmp_path: Path) -> None:
    async with homes(tmp_path) as world:
        inode = await world.make("mine")
        entry = await world.fs.getattr(inode, caller(UID))
        await world.fs.setattr(inode, entry, Fields(update_mtime=True), None, caller(UID))  # type: ignore[arg-type]
        with refused(errno.EROFS):
            await world.fs.setattr(inode, entry, Fields(update_mode=True), None, caller(UID))  # type: ignore[arg-type]


async def test_what_was_written_survives_a_restart_and_not_a_removal(tmp_path: Path) -> None:
    # abi.md 3.17
    async with homes(tmp_path) as world:
        await world.make("mine")
        await world.put(f"{AGENTS}/mine.d/approval", b"ask\n")
        world.again()
        assert await world.read(f"{AGENTS}/mine.d/approval") == b"ask\n"
        await world.unlink(f"{AGENTS}/mine")
        await world.make("mine")
        assert await world.read(f"{AGENTS}/mine.d/approval") == b"auto\n"
        assert set(ControlStore(tmp_path / "tree").load().values) == set()


async def test_what_a_crash_left_of_a_removed_one_is_not_the_next_ones(tmp_path: Path) -> None:
    async with homes(tmp_path) as world:
        ControlStore(tmp_path / "tree").put_value(KEY, "approval", b"ask\n")
        world.again()
        await world.make("mine")
        assert await world.read(f"{AGENTS}/mine.d/approval") == b"auto\n"


async def test_a_file_that_was_open_writes_into_no_agent_made_since(tmp_path: Path) -> None:
    async with homes(tmp_path) as world:
        await world.make("mine")
        control = await world.find(f"{AGENTS}/mine.d/approval")
        info = await world.fs.open(control, os.O_WRONLY | os.O_TRUNC, caller(UID))
        await world.fs.write(info.fh, 0, b"ask\n")
        await world.unlink(f"{AGENTS}/mine")
        await world.fs.flush(info.fh)
        assert set(ControlStore(tmp_path / "tree").load().values) == set()
        await world.make("mine")
        await world.fs.flush(info.fh)
        await world.fs.release(info.fh)
        assert await world.read(f"{AGENTS}/mine.d/approval") == b"auto\n"


async def test_controls_and_sessions_stand_side_by_side(tmp_path: Path) -> None:
    # abi.md 5.31
    async with homes(tmp_path) as world:
        await written(world.sessions, in_home("mine"))
        before = await world.find(f"{AGENTS}/mine.d")
        assert await world.names(f"{AGENTS}/mine.d") == ["session"]
        await world.make("mine")
        assert await world.find(f"{AGENTS}/mine.d") != before
        found = await world.names(f"{AGENTS}/mine.d")
        assert {"session", "model", "log"} <= set(found)
        assert len(found) == len(set(found))
        listing = await world._listed(await world.find(f"{AGENTS}/mine.d/session"))
        assert listing[1] == ("..", await world.find(f"{AGENTS}/mine.d"))
        assert await world.names(f"{AGENTS}/mine.d/session/default")
        with refused(errno.EROFS):  # an agent is removed by the removal of its file
            await world.fs.rmdir(await world.find(AGENTS), b"mine.d", caller(UID))
        await world.unlink(f"{AGENTS}/mine")
        assert await world.names(AGENTS) == ["mine.d"]
        assert await world.names(f"{AGENTS}/mine.d") == ["session"]
        await world.remove(f"{AGENTS}/mine.d")
        assert await world.names(AGENTS) == []


async def test_names_that_cannot_be(tmp_path: Path) -> None:
    # abi.md 2.4; two agents of one name would share their sessions
    async with homes(tmp_path) as world:
        folder = await world.find(AGENTS)
        for name, code in {".x": errno.EINVAL, "a b": errno.EINVAL, "coder": errno.EEXIST}.items():
            with refused(code):
                await world.make(name)
        await world.fs.symlink(folder, b"short", b"/x", caller(UID))
        with refused(errno.EEXIST):
            await world.make("short")
        await world.make("mine")
        with refused(errno.EEXIST):
            await world.fs.symlink(folder, b"mine", b"/x", caller(UID))
        with refused(errno.EROFS):
            await world.fs.create(
                await world.find(f"home/{UID}/model"), b"x", 0o644, os.O_WRONLY, caller(UID)
            )


async def test_where_both_are_the_one_of_agent_works(tmp_path: Path) -> None:
    async with homes(tmp_path) as world:
        await world.make("mine")
        mine = Object(class_="agent", name="mine", description="")
        await world.fs.apply(Registry({**world.fs.tree.registry.objects, mine.key: mine}))
        assert (await world.read(f"{AGENTS}/mine.d/status")).startswith(
            b"broken: agent/mine exists, and your sessions"
        )
        assert world.fs.tree.registry.key_of("agent", "mine", UID) == ("agent", "mine")
        await world.fs.apply(Registry({CODER.key: CODER}))  # agent/mine is removed
        assert await world.read(f"{AGENTS}/mine.d/status") == b"ready\n"


async def test_another_registry_takes_none_of_them_away(tmp_path: Path) -> None:
    async with homes(tmp_path) as world:
        await world.make("mine")
        await world.put(f"{AGENTS}/mine.d/approval", b"ask\n")
        await world.fs.apply(Registry({}))
        assert await world.read(f"{AGENTS}/mine.d/approval") == b"ask\n"


async def test_one_that_is_damaged_is_there_and_broken(tmp_path: Path) -> None:
    async with homes(tmp_path) as world:
        await world.make("mine")
        (tmp_path / "agents" / "home" / str(UID) / "mine.json").write_text("{")
        (tmp_path / "agents" / "home" / "nobody").mkdir()
        world.again()
        assert (await world.read(f"{AGENTS}/mine.d/status")).startswith(b"broken: ")
        await world.unlink(f"{AGENTS}/mine")
        assert await world.names(AGENTS) == []


async def test_the_socket_is_bound_in_a_closed_folder_and_seen_in_the_home(tmp_path: Path) -> None:
    # A user may mount another file system over this home, so no path of ours leads there.
    async with homes(tmp_path) as world:
        inode = await world.make("mine")
        found, pid = world.fs.object_of(inode, UID), os.getpid()
        with world.fs.bindings.expecting(found):
            made = await world.fs.mknod(places.BIND, b"sock", stat.S_IFSOCK | 0o777, 0, caller(0, pid))
        assert made.st_ino == await world.find(f"{AGENTS}/mine.sock")
        assert (stat.S_IMODE(made.st_mode), made.st_uid, made.entry_timeout) == (0o600, UID, 0)
        assert await world.gone(".bind/sock")
        with refused(errno.EROFS):
            await world.fs.mknod(places.BIND, b"sock", stat.S_IFSOCK | 0o777, 0, caller(0, pid))


# Limits of one user.


async def test_how_many_a_user_has_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_objects, "MAX_OF_USER", 2)
    async with homes(tmp_path) as world:
        for name in ("a", "b"):
            await world.make(name)
        with refused(errno.EDQUOT):
            await world.make("c")
        with monkeypatch.context() as same:  # abi.md 1.28
            same.setattr(home_objects, "person_of", lambda uid: UID)
            other = world.fs.tree.home(UID + 1, UID + 1, 1) | places.HOME_SLOTS["agent"]
            with pytest.raises(Fault, match=f"uid {UID + 1} has 2 agents already"):
                await world.fs.own.make(other, "c")
        await world.unlink(f"{AGENTS}/a")
        await world.make("c")
        monkeypatch.setattr(home_objects, "MAX_OF_USER", 9)
        monkeypatch.setattr(home_objects, "MAX_IN_TREE", 2)
        with refused(errno.ENOSPC):
            await world.make("d")


async def test_how_much_a_user_writes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "MAX_OF_HOME", 100)
    async with homes(tmp_path) as world:
        for name in ("a", "b"):
            await world.make(name)
        await world.put(f"{AGENTS}/a.d/system.md", b"x" * 60)
        with refused(errno.EDQUOT):
            await world.put(f"{AGENTS}/b.d/system.md", b"x" * 60)
        await world.put(f"{AGENTS}/a.d/system.md", b"y" * 90)  # the replaced text is not counted
        await world.unlink(f"{AGENTS}/a")
        await world.put(f"{AGENTS}/b.d/system.md", b"x" * 60)


async def test_lines_of_its_policy_are_bounded(tmp_path: Path) -> None:
    # Each decision reads these lines, in the daemon.
    async with homes(tmp_path) as world:
        await world.make("mine")
        line = b"allow mine_t tool:shell execute\n"
        with refused(errno.EDQUOT):
            await world.put(f"{AGENTS}/mine.d/policy", line * (writes.MAX_LINES + 1))
        await world.put(f"{AGENTS}/mine.d/policy", line * writes.MAX_LINES)
        await world.put("agent/coder.d/policy", line * (writes.MAX_LINES + 1))


async def test_open_files_of_a_user_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "MAX_OF_HOME", 3)
    async with homes(tmp_path) as world:
        await world.make("mine")
        control = await world.find(f"{AGENTS}/mine.d/system.md")
        handles = [(await world.fs.open(control, os.O_WRONLY, caller(UID))).fh for _ in range(3)]
        with refused(errno.EMFILE):
            await world.fs.open(control, os.O_RDONLY, caller(UID))
        await world.fs.open(await world.find("agent/coder.d/system.md"), os.O_WRONLY, caller())
        await world.fs.release(handles[0])
        await world.fs.open(control, os.O_RDONLY, caller(UID))


async def test_temporary_files_of_users_are_bounded_and_take_nobodys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "MAX_OF_HOME", 2)
    monkeypatch.setattr(edits, "MAX_IN_TREE", 1)
    async with homes(tmp_path) as world:
        await world.make("mine")
        folder = await world.find(f"{AGENTS}/mine.d")
        inodes = []
        for number in range(2):
            name = f"tmpabcdef{number}".encode()
            info, entry = await world.fs.create(folder, name, 0o600, os.O_WRONLY, caller(UID))
            await world.fs.release(info.fh)
            inodes.append(entry.st_ino)
            await world.fs.unlink(folder, name, caller(UID))
        with refused(errno.ENOSPC):  # the removed files may still be open
            await world.fs.create(folder, b"tmpabcdefg", 0o600, os.O_WRONLY, caller(UID))
        coder = await world.find("agent/coder.d")
        await world.fs.create(coder, b"tmpabcdefg", 0o600, os.O_WRONLY, caller())
        await world.fs.forget([(inode, 1) for inode in inodes])
        await world.fs.create(folder, b"tmpabcdefg", 0o600, os.O_WRONLY, caller(UID))


async def test_a_tree_without_a_state_has_none(tmp_path: Path) -> None:
    async with store(tmp_path) as sessions:
        world = Seen(tmp_path, sessions)
        with refused(errno.EROFS):
            await world.fs.create(await world.find(AGENTS), b"x", 0o644, os.O_WRONLY, caller(UID))
