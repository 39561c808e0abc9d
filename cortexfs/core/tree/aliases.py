"""Aliases: symbolic links that users make in model/, agent/ and tool/, of the root or of their home.

Rules: an object hides an alias of the same name, and no alias may be made with the name of an object. Methods
change only memory: their caller has stored the change before.
This file must never know the registered objects, nor the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cortexfs.core.errors import Fault
from cortexfs.core.tree import places
from cortexfs.core.tree.inodes import Nodes
from cortexfs.core.tree.places import CLASS_FOLDERS, HOME_SLOTS, Alias, Attributes, Home, Keep, slot


class Aliases:
    def __init__(
        self,
        nodes: Nodes,
        owner: tuple[int, int],
        lookup: Callable[[int, str], int | None],
        touch: Callable[[int, int], None],
    ) -> None:
        self._nodes = nodes
        self._owner = owner
        self._lookup = lookup  # returns the inode that has a name in the tree
        self._touch = touch
        self._by_folder: dict[int, dict[str, Alias]] = {}

    def at(self, inode: int) -> Alias | None:
        node = self._nodes.find(inode)
        return node if isinstance(node, Alias) else None

    def find(self, folder: int, name: str) -> int | None:
        alias = self._by_folder.get(folder, {}).get(name)
        return alias.inode if alias else None

    def visible(self, folder: int) -> Iterator[tuple[str, int]]:
        for name, alias in self._by_folder.get(folder, {}).items():
            if self._lookup(folder, name) == alias.inode:  # an object of that name hides it
                yield name, alias.inode

    def attributes(self, alias: Alias) -> Attributes:
        """Returns the attributes. In a home's model/, the kernel must not cache them, as it does not see a
        folder of sessions that appears there and hides an alias."""
        home = isinstance(self._nodes.find(alias.folder), Home)
        keep = Keep.NOTHING if home and slot(alias.folder) == HOME_SLOTS["model"] else Keep.ALWAYS
        return Attributes(places.LINK_MODE, *alias.owner, len(alias.target), alias.mtime, keep)

    def owner(self, folder: int) -> tuple[int, int] | None:
        """Returns the owner of the aliases in this folder, or None if it can hold none."""
        if folder in CLASS_FOLDERS:
            return self._owner
        node = self._nodes.find(folder)
        return (node.uid, node.gid) if isinstance(node, Home) and slot(folder) else None

    # Changes.

    def check(self, folder: int, name: str, target: bytes) -> None:
        """Raises a Fault if no such alias can be here."""
        if self.owner(folder) is None:
            raise Fault("EROFS", "aliases are possible only in model/, agent/ and tool/, also of home/<uid>")
        places.check_alias(name, target)
        aliases = self._by_folder.get(folder, {})
        if name not in aliases and self._lookup(folder, name) is not None:
            raise Fault("EEXIST", f"{name} is the name of an object, which an alias may not hide")
        if name not in aliases and len(aliases) >= places.MAX_ALIASES:
            raise Fault("ENOSPC", f"this folder has {places.MAX_ALIASES} aliases; remove some")
        if name not in aliases and sum(map(len, self._by_folder.values())) >= places.MAX_ALIASES_IN_TREE:
            raise Fault("ENOSPC", f"the mount has {places.MAX_ALIASES_IN_TREE} aliases; remove some")

    def add(self, folder: int, name: str, target: bytes, now: int) -> int:
        inode = self._nodes.new()
        self._put(Alias(inode, folder, name, target, self.owner(folder) or self._owner, now), now)
        return inode

    def _put(self, alias: Alias, now: int) -> None:
        self._nodes.add(alias.inode, alias)
        self._by_folder.setdefault(alias.folder, {})[alias.name] = alias
        self._touch(alias.folder, now)

    def remove(self, alias: Alias, now: int) -> None:
        del self._by_folder[alias.folder][alias.name]
        self._nodes.remove(alias.inode)
        self._touch(alias.folder, now)

    def move(self, alias: Alias, folder: int, name: str, now: int) -> None:
        """Move an alias. It keeps its inode, as the kernel keeps its entry."""
        if former := self._by_folder.get(folder, {}).get(name):
            self.remove(former, now)
        self.remove(alias, now)
        owner = self.owner(folder) or self._owner
        self._put(Alias(alias.inode, folder, name, alias.target, owner, alias.mtime), now)
