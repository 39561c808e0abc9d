"""Agents and tools in users' homes: making a file there makes one, and removing the file removes it.

    : > /ctx/home/1000/agent/mine      mine, mine.sock and mine.d/ are there, with a new agent's defaults
    rm /ctx/home/1000/agent/mine       they are gone; mine.d/session stays, as sessions are their user's files
    : > /ctx/home/1000/tool/mine       mine and mine.d/ are there; mine.d/script says which script it is

Rules: the kernel has checked that the caller may change the folder, which is its user's alone. A name that
agent/ or tool/ has is taken, as the sessions and logs of both would be the same files. If both exist
nevertheless, the one of agent/ or tool/ works and the user's is broken. The number of a user's objects and
the bytes written in them are bounded: each is memory, and an agent a listener. A tool is kept as its control.
This file must never know FUSE, or how an agent or a script works.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import trio
from msgspec.structs import replace

from cortexfs.agents import records
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import own_script
from cortexfs.core.manifest.mcp_server import KIND as MCP_SERVER
from cortexfs.core.registry import OWN, Key, Object, Registry, own_key, plain, uid_of
from cortexfs.core.tree import controls, places
from cortexfs.core.tree.places import Home
from cortexfs.core.tree.tree import Tree
from cortexfs.linux.subordinates import person_of
from cortexfs.tree.writes import TreeWrites, log_refusal

log = logging.getLogger("cortexfs.tree")

MAX_OF_USER = 64  # of a class
MAX_IN_TREE = 2048  # each agent has a listener, which is a descriptor
_TAKEN = {
    "model": "your sessions with it are kept under this name",
    "agent": "your sessions with it are kept under this name",
    "tool": "the log of your runs of it is kept under this name",
}


class OwnObjects:
    def __init__(
        self,
        tree: Tree,
        changes: TreeWrites,
        state: Path | None,
        clock: Callable[[], int],
        forgotten: Callable[[Key], None],
    ) -> None:
        self._tree = tree
        self._changes = changes
        self._state = state  # None: users cannot make agents in this tree
        self._clock = clock
        self.forgotten = forgotten  # called with each object that was removed
        self._own: dict[Key, Object] = {}

    def load(self) -> None:
        """Load the users' objects, before the mount."""
        try:
            found = records.load_own(self._state) if self._state else []
        except Fault as fault:
            log.error("the mount has no agents of users: %s", fault.message)
            return
        for object_ in found:
            assert object_.home is not None
            self._tree.home(object_.home, object_.home, self._clock())
            self._own[object_.key] = object_
        for key, written in self._tree.values.of.items():
            if key[0] == "tool" and (uid := uid_of(key)) is not None:
                self._tree.home(uid, uid, self._clock())
                registered = min(each.mtime for each in written.values()) / 1e9
                self._own[key] = own_script.as_object(plain(key)[1], uid, "", registered)
                self._now(key)

    def _now(self, key: Key) -> Object:
        """Returns an object as it is now: a tool is made of its control."""
        object_ = self._own[key]
        if key[0] != "tool":
            return object_
        assert object_.home is not None
        text = self._tree.control(object_, own_script.CONTROL)
        self._own[key] = tool = own_script.as_object(object_.name, object_.home, text, object_.registered)
        return tool

    def live(self, uid: int) -> list[str]:
        """Returns the paths of a user's scripts that are not held."""
        keys = [own_key("tool", uid, name) for name in self._tree.registry.names("tool", uid)]
        texts = [self._tree.control(self._own[key], own_script.CONTROL) for key in keys if key in self._own]
        return [script.path for text in texts if text and not (script := own_script.read(text)).held]

    async def hold(self, uid: int, reaches: Callable[[str], bool], label: str) -> dict[Key, Object]:
        """Mark these scripts as held, in their controls. Returns the tools that this changes."""
        keys = [own_key("tool", uid, name) for name in self._tree.registry.names("tool", uid)]
        held = [key for key in keys if await self._rewrite(key, reaches, held=label)]
        return {key: self._now(key) for key in held if key in self._own}

    async def renew(self, object_: Object, header: bytes) -> None:
        """Keep the new comment of a script, which a host has found when its user called it."""
        with contextlib.suppress(Fault):  # the log says why; the next call tries again
            await self._rewrite(object_.key, lambda path: True, header=header.decode(errors="replace"))

    async def _rewrite(self, key: Key, accepts: Callable[[str], bool], **changes: str) -> bool:
        """Change a script's control, unless the script is held, or `accepts` refuses its path."""
        control = controls.BY_NAME["tool", own_script.CONTROL]
        async with self._changes.lock:
            text = self._tree.control(self._own[key], control.name) if key in self._own else ""
            if not text or (script := own_script.read(text)).held or not accepts(script.path):
                return False
            value = self._changes.judge(self._own[key], control, script._replace(**changes).text.encode())
            await self._changes.put(key, control.name, value, self._clock())
            return True

    def joined(self, registry: Registry) -> Registry:
        """Returns the registry with these objects; of users' own ones it keeps models and servers' tools."""
        of_all = {key: object_ for key, object_ in registry.objects.items() if object_.home is None}
        own: dict[Key, Object] = {}
        for key, object_ in registry.objects.items():
            is_given = object_.class_ == "tool" and object_.plugin_kind == MCP_SERVER  # for one user
            if object_.home is not None and (object_.class_ == "model" or is_given):
                self._tree.home(object_.home, object_.home, self._clock())
                own[key] = object_
        own |= {key: registry.objects.get(key, object_) for key, object_ in self._own.items()}
        return Registry(of_all | {key: _beside(object_, of_all) for key, object_ in own.items()})

    def some(self, keys: Iterable[Key] | None) -> list[Object]:
        """Returns the users' objects of these keys that exist, or all of them, as they are now."""
        of_all = self._tree.registry.objects
        chosen = self._own if keys is None else keys
        return [_beside(self._now(key), of_all) for key in chosen if key in self._own]

    def is_place(self, folder: int) -> bool:
        return self._home(folder) is not None

    def is_file(self, inode: int) -> bool:
        found = self._tree.object_at(inode)
        return found is not None and found.home is not None

    def at(self, folder: int, name: str) -> Object | None:
        """Returns the object whose file this is, or None."""
        home = self._home(folder)
        return self._own.get(own_key(_class(folder), home.uid, name)) if home else None

    async def make(self, folder: int, name: str) -> int:
        home = self._home(folder)
        assert home
        async with self._changes.lock:
            class_ = _class(folder)
            with log_refusal(name):
                self._check(folder, home, class_, name)
            assert self._state
            # A crash may have left values of a removed object, which must not become those of this one.
            if (key := own_key(class_, home.uid, name)) in self._tree.values.keys():  # noqa: SIM118
                await self._changes.drop_values(key)
            now = self._clock() / 1e9
            if class_ == "tool":
                object_ = own_script.as_object(name, home.uid, "", now)
            else:
                record = records.own(name, home.uid, home.gid, now)
                await self._changes.keep(records.put, self._state, record, home.uid)
                object_ = records.own_object(record, home.uid)
            self._own[object_.key] = object_
            self._show(object_.key)
            return self._tree.nodes.object_inode(object_.key)

    async def remove(self, folder: int, name: str) -> None:
        async with self._changes.lock:
            object_ = self.at(folder, name)
            if object_ is None:
                raise Fault("ENOENT", f"{name} does not exist")
            await self._removed(object_)

    async def unmake(self, inode: int) -> None:
        """Remove an object into whose file its user writes, by copying a file here. The write is refused, and
        no agent must be left of it. An object that was set up meanwhile stays."""
        async with self._changes.lock:
            object_ = self._tree.object_at(inode)
            if object_ and self._own.get(object_.key) and object_.key not in self._tree.values.keys():  # noqa: SIM118
                await self._removed(object_)

    async def _removed(self, object_: Object) -> None:
        assert object_.home is not None
        assert self._state
        if object_.class_ == "agent":
            await self._changes.keep(records.remove, self._state, object_.name, object_.home)
        del self._own[object_.key]
        self._show(object_.key)
        await self._changes.drop_values(object_.key)
        await trio.to_thread.run_sync(self.forgotten, object_.key)

    def _show(self, key: Key) -> None:
        """Show the objects as they are now. The kernel remembers none of their names, so it is not told."""
        self._tree.apply(self.joined(self._tree.registry), self._clock())
        self._changes.changed(key)

    def _home(self, folder: int) -> Home | None:
        node = self._tree.nodes.find(folder)
        is_theirs = places.HOME_CLASSES.get(places.slot(folder)) in OWN
        return node if self._state and isinstance(node, Home) and is_theirs else None

    def _check(self, folder: int, home: Home, class_: str, name: str) -> None:
        names.check_object(class_, names.check_new(name))
        if self._tree.lookup(folder, name) is not None:
            raise Fault("EEXIST", f"{name} exists already")
        if self._tree.registry.get(class_, name):
            raise Fault("EEXIST", f"{class_}/{name} exists, and {_TAKEN[class_]}; choose another name")
        person, owners = person_of(home.uid), {home.uid, *map(uid_of, self._own)}
        theirs = [uid for uid in owners if uid is not None and person_of(uid) == person]
        if sum(len(self._tree.registry.names(class_, uid)) for uid in theirs) >= MAX_OF_USER:
            raise Fault("EDQUOT", f"uid {home.uid} has {MAX_OF_USER} {class_}s already; remove some")
        if len(self._own) >= MAX_IN_TREE:
            raise Fault("ENOSPC", f"there are {MAX_IN_TREE} objects of users already")


def _class(folder: int) -> str:
    return places.HOME_CLASSES[places.slot(folder)]


def _beside(object_: Object, of_all: Mapping[Key, Object]) -> Object:
    if (object_.class_, object_.name) not in of_all:
        return object_
    why = (
        f"{object_.class_}/{object_.name} exists, and {_TAKEN[object_.class_]}; remove this {object_.class_}"
    )
    return replace(object_, status=f"broken: {why}", plugin=None)
