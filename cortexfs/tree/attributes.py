"""The visible part of the tree, with the parts that core/ does not know: status, logs, sessions, the kernel.

Rules: a generated file is rendered at stat or open, and one rendering serves both for a second, so that sizes
are exact; an open with O_RSYNC reads the present state. Entries that the kernel keeps are built once; call
`clear` after every change. The kernel's lookups are counted for temporary files, and by session_view.py for
files of sessions. No other file goes because the kernel has forgotten it.
This file must never know changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

from pyfuse3 import EntryAttributes

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Registry
from cortexfs.core.tree import controls, metadata, places
from cortexfs.core.tree.places import HOME, OBJECTS, STATUS, UNLISTED, Attributes, Keep
from cortexfs.core.tree.session_places import BIT
from cortexfs.core.tree.tree import Tree
from cortexfs.state.run_logs import Logs
from cortexfs.tree import kernel
from cortexfs.tree.open_files import Listing, LogFile, OpenFile, Snapshot
from cortexfs.tree.session_view import Spaces

RENDERING = 1_000_000_000  # nanoseconds that one rendering serves (abi.md 1.16)


class Entries:
    def __init__(
        self,
        tree: Tree,
        spaces: Spaces,
        logs: Logs,
        status: Callable[[], str],
        unlisted: Mapping[int, Callable[[], bytes]],
        clock: Callable[[], int],
    ) -> None:
        self._tree = tree
        self._spaces = spaces
        self._missing = kernel.missing()
        self._logs = logs
        self._render = status
        self._unlisted = {**dict.fromkeys(UNLISTED.values(), bytes), **unlisted, OBJECTS: self._objects}
        self._clock = clock
        self._rendered: tuple[int, bytes] | None = None
        self._facts: tuple[Registry, bytes] | None = None
        self._cached: dict[int, EntryAttributes] = {}
        self._lookups: dict[int, int] = {}
        self._listings: dict[int, Listing] = {}

    # Names.

    async def lookup(self, folder: int, name: str, user: tuple[int, int]) -> EntryAttributes:
        """Returns an entry for this uid and gid. A missing name is an entry that may be kept, or a Fault."""
        space = self._spaces.place(folder)
        if space and not self.is_objects(folder, name) and (entry := await self._spaces.lookup(space, name)):
            return entry
        found = self._tree.lookup(folder, name)
        if found is None and folder == HOME:
            found = await self._home(name, user)
        if found is None and space:
            raise Fault("ENOENT", "it is not there yet")
        return self.kernel_entry(self._tree.veiled(found, user[0])) if found else self._missing

    async def _home(self, name: str, user: tuple[int, int]) -> int:
        """Returns the home of a user who looks for it, or who has sessions."""
        own = name == str(user[0])
        if not own and not await self._spaces.homes([name]):
            raise Fault("ENOENT", f"{name} has no home yet")
        self.clear()
        return self._tree.home(int(name), user[1] if own else int(name), self._clock())

    async def listing(self, folder: int, uid: int) -> Listing:
        """Returns the entries that this user sees, of one moment, held until `let_go`."""
        if folder == HOME:
            for user in await self._spaces.homes():
                with contextlib.suppress(Fault):  # there are too many homes; the others are shown
                    if self._tree.lookup(HOME, str(user)) is None:
                        self._tree.home(user, user, self._clock())
                        self.clear()
        space = self._spaces.place(folder)
        if space is None:
            return self._listing(folder, uid)
        found = await self._spaces.listing(space, folder)
        if folder & BIT:
            return found
        hiding = [entry for entry in found if self.is_objects(folder, entry[0])]
        self.let_go(hiding)
        found = [entry for entry in found if entry not in hiding]
        hidden = {name for name, _ in found}  # a folder of sessions hides an alias of its name
        return [*(entry for entry in self._listing(folder, uid) if entry[0] not in hidden), *found]

    def is_objects(self, folder: int, name: str) -> bool:
        """Returns True if a name is an object's or a provider's in the tree, and not a folder of sessions."""
        found = self._tree.lookup(folder, name)
        return found is not None and self._tree.is_of_registry(found)

    def _listing(self, folder: int, uid: int) -> Listing:
        """Returns a folder's entries. Opens of a large folder share a list, as they may come very often."""
        if self._tree.owner_object(folder):
            return [(name, self._tree.veiled(inode, uid)) for name, inode in self._tree.listing(folder)]
        found = self._listings.get(folder)
        if found is None:
            found = self._listings[folder] = self._tree.listing(folder)
        return found

    def let_go(self, listing: Listing) -> None:
        self._spaces.forget((inode, 1) for _, inode in listing)

    # Attributes and bytes.

    def status(self) -> tuple[int, bytes]:
        """Returns the time at which `status` was rendered, and its text."""
        now = self._clock()
        if self._rendered is None or not 0 <= now - self._rendered[0] < RENDERING:
            self._rendered = (now, self._render().encode())
        return self._rendered

    def _objects(self) -> bytes:
        """Returns the facts about everybody's objects, made once for each registry."""
        registry = self._tree.registry
        if self._facts is None or self._facts[0] is not registry:
            self._facts = registry, metadata.facts(object_ for object_ in registry if object_.home is None)
        return self._facts[1]

    def attributes(self, inode: int) -> Attributes:
        found = self._tree.attributes(inode)
        if found is None:
            raise Fault("ENOENT", "it was removed")
        if inode == STATUS:
            rendered, text = self.status()
            return found._replace(size=len(text), mtime=rendered)
        if text_of := self._unlisted.get(inode):
            return found._replace(size=len(text_of()))
        control = self._tree.control_at(inode)
        if control and control[1].name == controls.LOG:
            size, grew = self._logs.stat(*control[0].key)
            return found._replace(size=size, mtime=int(grew * 1e9) or found.mtime)
        return found

    async def now(self, inode: int) -> EntryAttributes:
        if inode & BIT:
            return kernel.entry(inode, await self._spaces.attributes(inode))
        return self.entry(inode)

    def entry(self, inode: int) -> EntryAttributes:
        """Returns an entry. That of a file of sessions is as it was when its folder was listed."""
        if inode & BIT:
            return self._spaces.entry(inode)
        cached = self._cached.get(inode)
        if cached is not None:
            return cached
        found = self.attributes(inode)
        entry = kernel.entry(inode, found)
        if found.keep is Keep.ALWAYS and places.slot(inode) < places.CONTROL:
            self._cached[inode] = entry
        return entry

    async def open(self, inode: int, flags: int) -> OpenFile:
        """Open a file for reading only."""
        if inode & BIT:
            return await self._spaces.open(inode)
        if inode == STATUS:
            is_now = flags & os.O_RSYNC == os.O_RSYNC  # for this open alone, as other readers got a size
            return Snapshot(self._render().encode() if is_now else self.status()[1])
        if text_of := self._unlisted.get(inode):
            return Snapshot(text_of())
        found = self._tree.control_at(inode)
        if found is None and places.slot(inode) == places.VEILED:
            raise Fault("EACCES", "only the owner may read an object's log; your home has that of your runs")
        if found is None:
            raise Fault("ENOENT", "it was removed")
        object_, control = found
        if control.name == controls.LOG:
            return LogFile(self._logs, object_.key)
        return Snapshot(self._tree.value(object_, control))

    def clear(self) -> None:
        """Drop the entries that are built, after a change of the tree."""
        self._cached.clear()
        self._listings.clear()

    def kernel_entry(self, inode: int) -> EntryAttributes:
        """Returns an entry for the kernel, and counts it as a lookup."""
        self.count(inode)
        return self.entry(inode)

    def count(self, inode: int) -> None:
        if inode & BIT:
            self._spaces.hold(inode)
        elif self._tree.temporary_at(inode):
            self._lookups[inode] = self._lookups.get(inode, 0) + 1

    def forget(self, inodes: Sequence[tuple[int, int]]) -> None:
        """Count lookups down. A removed temporary file goes when its last user has closed it."""
        self._spaces.forget(inodes)
        for inode, count in inodes:
            if inode in self._lookups:
                self._lookups[inode] -= count
                temporary = self._tree.temporary_at(inode)
                if temporary and not temporary.linked and self._lookups[inode] <= 0:
                    del self._lookups[inode]
                    self._tree.forget_temporary(temporary)
