"""The changes that users make in the tree: checked, then kept on disk, then shown.

Rules: one change at a time (the lock). Between checking and showing, only a new registry can change the tree,
so objects that may have gone by then are looked up again. A refused value is put in the log, as not every
program shows the error of a close. The disk is written in a thread.
This file must never know FUSE: it raises Fault, and fuse.py tells the kernel.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeAlias

import trio

from cortexfs.core import names
from cortexfs.core.arguments import name_patterns
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.registry import HOME as HOME_NAME
from cortexfs.core.registry import Key, Object, Registry, is_own
from cortexfs.core.tree import controls, places
from cortexfs.core.tree.controls import Control
from cortexfs.core.tree.edits import Edit, Temporary
from cortexfs.core.tree.places import HOME, Alias
from cortexfs.core.tree.tree import Tree
from cortexfs.core.wire import SOCKET_NAME
from cortexfs.state.control_store import ControlStore, Draft
from cortexfs.tree.open_files import ControlFile, OpenFile, TemporaryFile

P = ParamSpec("P")
Source: TypeAlias = Temporary | tuple[Object, Control]  # a file in a .d/ that may be renamed

MAX_OF_HOME = 2 << 20  # bytes that are written in a user's own agents and tools
MAX_LINES = 256  # lines of such an object's policy: it is read for each decision, 5 µs a line

log = logging.getLogger("cortexfs.tree")


@contextlib.contextmanager
def log_refusal(name: str) -> Iterator[None]:
    """Log the Fault of a refused name, as an errno cannot tell the rule that the name breaks."""
    try:
        yield
    except Fault as fault:
        log.info("%r is refused: %s", name, fault.message)
        raise


def _control(object_: Object | None, name: str) -> Control | None:
    return controls.find(object_.class_, name) if object_ and controls.has(object_, name) else None


def _leaves(key: Key, registry: Registry) -> bool:
    if is_own(key):
        return key[0] == "model" and not registry.within(key[1].rpartition("/")[0])
    return key[0] == "agent"


def read_only() -> Fault:
    return Fault("EROFS", "this part of the tree is read-only")


class TreeWrites:
    def __init__(self, tree: Tree, store: ControlStore, clock: Callable[[], int]) -> None:
        self._tree = tree
        self._store = store
        self._clock = clock
        self._path = tree.nodes.path_of_aliases
        self.lock = trio.Lock()
        self._offered: int | None = None
        self.changed: Callable[[Key], None] = lambda key: None  # called with objects whose controls changed

    def load(self) -> None:
        """Show the homes, aliases and values that are on disk. Call this before the mount."""
        stored = self._store.load()
        tree, now = self._tree, self._clock()
        for uid in stored.homes:
            tree.home(uid, tree.owner[1], now)
        for alias in stored.aliases:
            tree.aliases.add(
                tree.nodes.folder_of_aliases(alias.folder), alias.name, alias.target, alias.mtime
            )
        for key, written in stored.values.items():
            tree.values.load(key, written)

    async def keep(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Write a change to the disk, in a thread."""
        try:
            await trio.to_thread.run_sync(lambda: work(*args, **kwargs))
        except OSError as error:
            log.error("a change cannot be kept: %s", error)
            raise Fault(code_of(error.errno), f"the change cannot be kept: {error.strerror}") from None

    # Controls.

    def judge(self, object_: Object, control: Control, data: bytes) -> bytes:
        place, refusals = f"{object_.path}.d/{control.name}", self._tree.values.refusals
        refusals.pop((object_.key, control.name), None)
        try:
            if (object_.class_, control.name) == ("agent", "tools"):
                known = self._tree.registry
                own = () if object_.home is None else known.names("tool", object_.home)
                data = name_patterns.expanded(data, (*known.names("tool"), *own))
            value = controls.judge(control, data)
            # An empty policy would let agents do more, and a write that failed may leave an empty file.
            if control.holds and not value.strip() and self._tree.value(object_, control).strip():
                mend = f"to undo it: ctx policy reset {object_.path}"
                raise Fault("EINVAL", f"{place} would be empty; {mend}")
            self._check_share(object_, control, value)
            return value
        except Fault as fault:
            log.warning("%s stays as it is: %s", place, fault.message)
            if object_.home is not None:  # its user cannot read this log
                refusals[object_.key, control.name] = fault.message
            raise

    def _check_share(self, object_: Object, control: Control, value: bytes) -> None:
        """Check a user's share, as the values that users write are in our memory."""
        if object_.home is None:
            return
        if control.name == "policy" and value.count(b"\n") > MAX_LINES:
            raise Fault("EDQUOT", f"the policy of your own object has over {MAX_LINES} lines; remove some")
        values, home = self._tree.values, object_.home
        keys = [key for key in values.keys() if key[1].startswith(f"{HOME_NAME}{home}/")]  # noqa: SIM118
        before = values.find(object_.key, control.name)
        size = sum(map(values.size, keys)) - len(before.data or b"" if before else b"") + len(value)
        if size > MAX_OF_HOME:
            raise Fault(
                "EDQUOT", f"controls of uid {home}'s objects are over {MAX_OF_HOME >> 20} MiB; shorten some"
            )

    def open(self, inode: int, flags: int) -> OpenFile:
        """Open a file for writing, with the flags of open(2); a temporary file also for reading."""
        appending, truncated = bool(flags & os.O_APPEND), bool(flags & os.O_TRUNC)
        if temporary := self._tree.temporary_at(inode):
            if truncated:
                temporary.truncate(0, self._clock())
            return TemporaryFile(temporary, self._clock, appending=appending)
        object_, control = self._writable(inode)
        edit = Edit(
            self._tree.value(object_, control),
            lambda data: self.judge(object_, control, data),
            truncated=truncated,
            appending=appending,
        )
        incarnation = self._tree.values.incarnation(object_.key, control.name)
        return ControlFile(object_.key, control, incarnation, edit, self)

    async def keep_draft(self, file: ControlFile) -> None:
        """Write the draft to the disk, so that the program that writes gets the error of a full disk."""
        async with self.lock:
            name, data = file.control.name, file.edit.draft()
            if self._tree.values.incarnation(file.key, name) != file.incarnation:
                return

            def work() -> None:
                file.draft = self._store.draft(file.key, name, id(file), data)

            await self.keep(work)

    async def drop_draft(self, file: ControlFile) -> None:
        if file.draft:
            async with self.lock:
                with contextlib.suppress(Fault):  # the next start removes it
                    await self.keep(file.draft.path.unlink, missing_ok=True)

    async def take_over(self, file: ControlFile) -> None:
        """Make the written value the control's, if there is one and the file still has its name."""
        async with self.lock:
            values, name = self._tree.values, file.control.name
            value = file.edit.pending()
            if value is None or values.incarnation(file.key, name) != file.incarnation:
                return
            now = file.mtime or self._clock()
            try:
                await self.put(file.key, name, value, now, file.draft)
            except Fault:
                file.edit.put_back()
                raise

    async def put(self, key: Key, name: str, value: bytes, mtime: int, draft: Draft | None = None) -> None:
        """Change a value. The caller holds the lock."""
        if value == controls.RESET:
            await self.keep(self._store.reset_value, key, name)
            self._tree.values.reset(key, name)
        else:
            await self.keep(self._store.put_value, key, name, value, draft)
            self._tree.values.put(key, name, value, mtime)
        self.changed(key)

    async def touch(self, inode: int, object_: Object, control: Control, mtime: int) -> None:
        async with self.lock:
            written = self._tree.values.find(object_.key, control.name)
            if written is None or written.data is None:
                self._tree.touch(inode, mtime)
                return
            await self.keep(self._store.put_value, object_.key, control.name, written.data)
            self._tree.values.put(object_.key, control.name, written.data, mtime)

    # Removed objects.

    def leaving(self, registry: Registry) -> list[Key]:
        """Returns the agents that are in the tree, or have values here, and are not in this registry, and
        users' own models whose provider has gone. Users' own agents go otherwise (home_objects.py)."""
        here = dict.fromkeys((*self._tree.registry.objects, *self._tree.values.keys()))
        return [key for key in here if key not in registry.objects and _leaves(key, registry)]

    async def drop(self, keys: Iterable[Key]) -> None:
        """Drop the values written for these objects, so that a new agent of such a name starts afresh."""
        for key in keys:
            async with self.lock:
                await self.drop_values(key)

    async def drop_values(self, key: Key) -> None:
        """Drop an object's values. The caller holds the lock."""
        with contextlib.suppress(Fault):  # the log has it, and the next start tries again
            await self.keep(self._store.drop_values, key)
        self._tree.values.drop(key, [control.name for control in controls.CONTROLS[key[0]]])

    # Names.

    async def create(self, folder: int, name: str, owner: tuple[int, int], mode: int) -> int:
        """Create a temporary file, or restore a control that was removed."""
        async with self.lock:
            if found := self._tree.lookup(folder, name):
                return found
            object_ = self._tree.owner_object(folder)
            control = _control(object_, name)
            if object_ is None or control is None:
                return self._tree.add_temporary(folder, name, owner, mode, self._clock()).inode
            await self.keep(self._store.restore_value, object_.key, name)
            self._tree.values.restore(object_.key, name, self._clock())
            self.changed(object_.key)
            self._tree.touch(folder, self._clock())
            return self._found(folder, name)

    async def symlink(self, folder: int, name: str, target: bytes) -> int:
        async with self.lock:
            with log_refusal(name):
                self._tree.aliases.check(folder, names.check_new(name), target)
            if self._tree.lookup(folder, name) is not None:
                raise Fault("EEXIST", f"{name} exists already")
            await self.keep(self._store.put_alias, self._path(folder), name, target)
            return self._tree.aliases.add(folder, name, target, self._clock())

    async def offer(self, name: str, target: bytes) -> bool:
        """Show an alias in model/ that no user has made, and that is not kept. Returns True if it changed. An
        alias that a user makes replaces it; after a removal it stays away until the next mount."""
        async with self.lock:
            aliases = self._tree.aliases
            found = self._tree.lookup(places.MODEL, name)
            alias = aliases.at(found) if found else None
            if found != self._offered or (alias and alias.target == target):
                return False
            if alias:
                aliases.remove(alias, self._clock())
            self._offered = aliases.add(places.MODEL, name, target, self._clock())
            return True

    async def make_home(self, folder: int, name: str) -> int:
        async with self.lock:
            if folder != HOME:
                raise read_only()
            with log_refusal(name):
                uid = places.uid_of(name)
            await self.keep(self._store.put_home, uid)
            return self._tree.home(uid, self._tree.owner[1], self._clock())

    async def unlink(self, folder: int, name: str) -> None:
        async with self.lock:
            inode = self._found(folder, name)
            if alias := self._tree.aliases.at(inode):
                await self.keep(self._store.remove_alias, self._path(folder), name)
                self._tree.aliases.remove(alias, self._clock())
            elif temporary := self._tree.temporary_at(inode):
                self._tree.temporaries.remove(temporary)
                self._tree.touch(folder, self._clock())
            else:
                await self._remove(*self._writable(inode))
                self._tree.touch(folder, self._clock())

    async def rename(self, folder: int, name: str, new_folder: int, new: str, *, replace: bool) -> None:
        async with self.lock:
            inode = self._found(folder, name)
            if (folder, name) == (new_folder, new):
                return
            if not replace and self._tree.lookup(new_folder, new) is not None:
                raise Fault("EEXIST", f"{new} exists already")
            if alias := self._tree.aliases.at(inode):
                await self._move_alias(alias, new_folder, new)
            elif folder != new_folder:
                self._temporary_or_writable(inode)
                raise Fault("EXDEV", "a file stays in its .d/; copy it")  # with EXDEV, mv copies
            else:
                await self._rename_in_controls(inode, folder, new)
            now = self._clock()
            self._tree.touch(folder, now)
            self._tree.touch(new_folder, now)

    async def _move_alias(self, alias: Alias, folder: int, name: str) -> None:
        tree = self._tree
        with log_refusal(name):
            tree.aliases.check(folder, name, alias.target)
        if alias.inode == self._offered:
            await self.keep(self._store.put_alias, self._path(alias.folder), alias.name, alias.target)
        await self.keep(
            self._store.move_alias, self._path(alias.folder), alias.name, self._path(folder), name
        )
        tree.aliases.move(alias, folder, name, self._clock())

    async def _rename_in_controls(self, inode: int, folder: int, new: str) -> None:
        object_ = self._tree.owner_object(folder)
        control = _control(object_, new)
        source = self._temporary_or_writable(inode)
        if object_ and control:
            await self._replace(source, object_, control)
        elif isinstance(source, Temporary):
            self._tree.check_temporary(folder, new)
            self._tree.temporaries.rename(source, new)
        else:
            # An editor makes its backup: the bytes go on under the new name.
            value = self._tree.value(*source)
            self._tree.check_temporary(folder, new)
            await self._remove(*source)
            owner = self._tree.owner_of(source[0])
            backup = self._tree.add_temporary(folder, new, owner, 0o644, self._clock())
            backup.data[:] = value

    async def _replace(self, source: Source, object_: Object, control: Control) -> None:
        """Give a file a control's name, and the control its bytes. If they are refused, the file stays."""
        if control.check is None:
            raise read_only()
        data = bytes(source.data) if isinstance(source, Temporary) else self._tree.value(*source)
        value = self.judge(object_, control, data)
        now = source.mtime if isinstance(source, Temporary) else self._clock()
        await self.put(object_.key, control.name, value, now)
        self._tree.values.supersede(object_.key, control.name)
        if isinstance(source, Temporary):
            self._tree.temporaries.remove(source)
        else:
            await self._remove(*source)

    async def _remove(self, object_: Object, control: Control) -> None:
        await self.keep(self._store.remove_value, object_.key, control.name, holds=control.holds)
        self._tree.values.remove(object_.key, control.name, self._clock(), holds=control.holds)
        self.changed(object_.key)

    def _found(self, folder: int, name: str) -> int:
        if name == SOCKET_NAME:
            raise read_only()
        inode = self._tree.lookup(folder, name)
        if inode is None:
            raise Fault("ENOENT", f"{name} does not exist")
        return inode

    def _writable(self, inode: int) -> tuple[Object, Control]:
        found = self._tree.control_at(inode)
        if found is None or found[1].check is None:
            raise read_only()
        return found

    def _temporary_or_writable(self, inode: int) -> Source:
        return self._tree.temporary_at(inode) or self._writable(inode)
