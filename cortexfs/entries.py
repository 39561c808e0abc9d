"""What can be seen and read in the tree, with what only the shell knows: status, logs, the kernel.

Rules: a generated file is rendered at stat or open, and one rendering serves both for a second, so
that sizes are exact. Entries that the kernel keeps are built once; `clear` after every change. The
kernel's lookups are counted for temporary files only: nothing else goes when nobody knows it.
This file must never know changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyfuse3 import EntryAttributes

from cortexfs import kernel
from cortexfs.core import controls, places
from cortexfs.core.errors import Fault
from cortexfs.core.places import STATUS, Attributes, Keep
from cortexfs.core.tree import Tree
from cortexfs.opened import Listing, LogFile, LogSource, Opened, Snapshot

RENDERING = 1_000_000_000  # nanoseconds that one rendering serves (abi.md 1)


class Entries:
    def __init__(
        self, tree: Tree, logs: LogSource, status: Callable[[], str], clock: Callable[[], int]
    ) -> None:
        self._tree = tree
        self._logs = logs
        self._render = status
        self._clock = clock
        self._rendered: tuple[int, bytes] | None = None
        self._kept: dict[int, EntryAttributes] = {}
        self._lookups: dict[int, int] = {}
        self._listings: dict[int, Listing] = {}

    def status(self) -> tuple[int, bytes]:
        """When `status` was rendered, and what it says."""
        now = self._clock()
        if self._rendered is None or not 0 <= now - self._rendered[0] < RENDERING:
            self._rendered = (now, self._render().encode())
        return self._rendered

    def attributes(self, inode: int) -> Attributes:
        found = self._tree.attributes(inode)
        if found is None:
            raise Fault("ENOENT", "it was removed")
        if inode == STATUS:
            rendered, text = self.status()
            return found._replace(size=len(text), mtime=rendered)
        if found.keep is Keep.ENTRY and (object_ := self._tree.owner_object(inode)):
            size, mtime = self._logs.size(*object_.key), int(self._logs.mtime(*object_.key) * 1e9)
            return found._replace(size=size, mtime=mtime or found.mtime)
        return found

    def entry(self, inode: int) -> EntryAttributes:
        kept = self._kept.get(inode)
        if kept is not None:
            return kept
        found = self.attributes(inode)
        entry = kernel.entry(inode, found)
        if found.keep is Keep.ALWAYS and places.slot(inode) < places.CONTROL:
            self._kept[inode] = entry
        return entry

    def open(self, inode: int) -> Opened:
        """For reading only."""
        if inode == STATUS:
            return Snapshot(self.status()[1])
        found = self._tree.control_at(inode)
        if found is None:
            raise Fault("ENOENT", "it was removed")
        object_, control = found
        if control.name == controls.LOG:
            return LogFile(self._logs, object_.key)
        return Snapshot(self._tree.value(object_, control))

    def listing(self, folder: int) -> Listing:
        """Of one moment. Large folders' are shared, as anybody may open one very often."""
        if self._tree.owner_object(folder):
            return self._tree.listing(folder)
        found = self._listings.get(folder)
        if found is None:
            found = self._listings[folder] = self._tree.listing(folder)
        return found

    def clear(self) -> None:
        """After a change of what there is."""
        self._kept.clear()
        self._listings.clear()

    def seen(self, inode: int) -> EntryAttributes:
        """An entry for the kernel, which counts it as a lookup."""
        self.count(inode)
        return self.entry(inode)

    def count(self, inode: int) -> None:
        if self._tree.temporary_at(inode):
            self._lookups[inode] = self._lookups.get(inode, 0) + 1

    def forget(self, inodes: Sequence[tuple[int, int]]) -> None:
        """A temporary file that was removed goes when the last who has it open has closed it."""
        for inode, count in inodes:
            if inode in self._lookups:
                self._lookups[inode] -= count
                temporary = self._tree.temporary_at(inode)
                if temporary and not temporary.linked and self._lookups[inode] <= 0:
                    del self._lookups[inode]
                    self._tree.nodes.remove(inode)
