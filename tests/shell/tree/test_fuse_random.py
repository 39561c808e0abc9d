"""Random operations in random order: no bug shows, names and inodes agree, and a restart changes nothing."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

import pyfuse3
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pyfuse3 import FUSEError

from cortexfs.core.tree.places import HOME, MODEL, ROOT, TOOL
from tests.bugcount import counted
from tests.shell.handlers import World, caller, registry
from tests.waiting import SOAK

# A few places only, so that changes collide.
PLACES = [
    ("tool/shell.d", "policy"),
    ("tool/shell.d", "policy~"),
    ("tool/shell.d", "sedAbCdEf"),
    ("tool/shell.d", "name"),
    ("tool/shell.d", ".run.sock"),
    ("model/p/m.d", "policy"),
    ("model/p/m.d", "effort"),
    ("model", "sh"),
    ("tool", "sh"),
    ("tool", "a"),
    ("tool", "shell"),
    ("tool", "x.d"),
    ("home/0/tool", "sh"),
    ("", "status"),
]
FLAGS = [0, os.O_TRUNC, os.O_APPEND]
DATA = [
    b"allow a tool:b execute\n",
    b"allow c tool:d execute",
    b"# none\n",
    b"low\n",
    b"deny\n",
    b"",
    b"\xff",
]
TOOLS = [("shell", "fs.read"), ("shell", "a"), ("fs.read",)]

some = st.sampled_from(PLACES)
edited = st.sampled_from(PLACES[:3])
steps = st.one_of(
    st.tuples(st.just("write"), edited, st.sampled_from(DATA), st.sampled_from(FLAGS)),
    st.tuples(st.just("write"), some, st.sampled_from(DATA), st.sampled_from(FLAGS)),
    st.tuples(st.just("create"), edited, st.sampled_from(DATA)),
    st.tuples(st.just("create"), some, st.sampled_from(DATA)),
    st.tuples(st.just("rename"), edited, edited, st.just(0)),
    st.tuples(st.just("rename"), some, some, st.sampled_from([0, pyfuse3.RENAME_NOREPLACE])),
    st.tuples(st.just("unlink"), edited),
    st.tuples(st.just("unlink"), some),
    st.tuples(st.just("symlink"), some),
    st.tuples(st.just("mkdir"), st.sampled_from(["7", "joe"])),
    st.tuples(st.just("apply"), st.sampled_from(TOOLS)),
)
Place = tuple[str, str]


class Player:
    """Does one step as the kernel would request it; a refusal counts as a success."""

    def __init__(self, state: Path) -> None:
        self.world = World(state)
        self.world.fs.strict = True
        self.tools: tuple[str, ...] = ("shell", "fs.read")

    async def folder(self, path: str) -> int:
        return await self.world.find(path) if path else ROOT

    async def step(self, verb: str, *details: object) -> None:
        with counted() as bugs:
            await self._try(verb, *details)
        assert bugs.met == 0

    async def _try(self, verb: str, *details: object) -> None:
        with contextlib.suppress(FUSEError, AssertionError):  # World.find asserts that a path exists
            await getattr(self, verb)(*details)

    async def write(self, place: Place, data: bytes, flags: int) -> None:
        fs = self.world.fs
        entry = await fs.lookup(await self.folder(place[0]), place[1].encode(), caller())
        info = await fs.open(entry.st_ino, os.O_WRONLY | flags, caller())
        await self._fill(info.fh, data)

    async def create(self, place: Place, data: bytes) -> None:
        folder = await self.folder(place[0])
        info, _ = await self.world.fs.create(folder, place[1].encode(), 0o100644, os.O_WRONLY, caller())
        await self._fill(info.fh, data)

    async def _fill(self, handle: int, data: bytes) -> None:
        try:
            await self.world.fs.write(handle, 0, data)
            await self.world.fs.flush(handle)
        finally:
            await self.world.fs.release(handle)

    async def rename(self, old: Place, new: Place, flags: int) -> None:
        here, there = await self.folder(old[0]), await self.folder(new[0])
        await self.world.fs.rename(here, old[1].encode(), there, new[1].encode(), flags, caller())

    async def unlink(self, place: Place) -> None:
        await self.world.fs.unlink(await self.folder(place[0]), place[1].encode(), caller())

    async def symlink(self, place: Place) -> None:
        await self.world.fs.symlink(await self.folder(place[0]), place[1].encode(), b"target", caller())

    async def mkdir(self, name: str) -> None:
        await self.world.fs.mkdir(HOME, name.encode(), 0o755, caller())

    async def apply(self, tools: tuple[str, ...]) -> None:
        self.tools = tools
        await self.world.fs.apply(registry(*tools))

    async def shown(self, temporary: bool) -> dict[str, bytes]:
        """Returns every path with its content; each name is looked up as it is listed."""
        found: dict[str, bytes] = {}
        tree, fs = self.world.fs.tree, self.world.fs
        waiting = [(ROOT, "")]
        while waiting:
            folder, path = waiting.pop()
            for name, inode in tree.listing(folder)[2:]:
                entry = await fs.lookup(folder, name.encode(), caller())
                assert entry.st_ino == inode, f"{path}/{name}"
                if stat.S_ISDIR(entry.st_mode):
                    waiting.append((inode, f"{path}/{name}"))
                elif tree.aliases.at(inode):
                    found[f"{path}/{name}"] = await fs.readlink(inode, caller())
                elif (control := tree.control_at(inode)) and control[1].check:
                    found[f"{path}/{name}"] = tree.value(*control)
                elif temporary and (file := tree.temporary_at(inode)):
                    found[f"{path}/{name}"] = bytes(file.data)
        return found


@settings(max_examples=1000 if SOAK else 40, deadline=None)
@given(script=st.lists(steps, min_size=5, max_size=30))
def test_any_order_of_changes_leaves_a_tree_that_agrees_with_itself_and_the_disk(
    script: list[tuple[object, ...]],
) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as state:
            player = Player(Path(state))
            for verb, *details in script:
                await player.step(str(verb), *details)
            await player.shown(temporary=True)
            before = await player.shown(temporary=False)
            again = Player(Path(state))
            await again.apply(player.tools)
            assert await again.shown(temporary=False) == before

    trio.run(play)


@settings(max_examples=1000 if SOAK else 25, deadline=None)
@given(script=st.lists(st.sampled_from(TOOLS), max_size=8))
def test_no_inode_is_ever_two_objects(script: list[tuple[str, ...]]) -> None:
    # abi.md 1.14
    async def play() -> None:
        with tempfile.TemporaryDirectory() as state:
            player = Player(Path(state))
            known: dict[int, str] = {}
            for tools in script:
                await player.apply(tools)
                for name, inode in player.world.fs.tree.listing(TOOL)[2:]:
                    assert known.setdefault(inode, name) == name
            assert len(set(known.values())) == len(known)
            assert (await player.world.fs.lookup(MODEL, b"p", caller())).st_ino

    trio.run(play)
