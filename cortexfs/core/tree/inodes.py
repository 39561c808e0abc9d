"""The inodes of paths: a ledger that only grows, so that no number is used twice.

Rules: every object, provider, home, alias and temporary file gets a block of inodes here when it is first
asked for. Objects, providers and homes keep their block for the life of the mount, also after a removal.
Files that users make and remove themselves get another block each time. The ledger may have entries of files
that are gone: core/tree/tree.py knows which files exist.
This file must never know the registered objects.
"""

from __future__ import annotations

from typing import TypeAlias

from cortexfs.core import registry
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key
from cortexfs.core.tree import places, session_places
from cortexfs.core.tree.controls import LOG
from cortexfs.core.tree.edits import Temporary
from cortexfs.core.tree.places import (
    CLASS_FOLDERS,
    CONTROL,
    FIXED,
    FOLDER,
    HOME,
    MAIN,
    MODEL,
    SUFFIXES,
    Alias,
    Home,
    OfObject,
    ProviderNode,
    block,
    slot,
)
from cortexfs.core.tree.session_places import SessionPlace

Node: TypeAlias = OfObject | ProviderNode | Home | Alias | Temporary

MAX_HOMES = 65_536  # a user namespace can have that many users, and each home takes memory
FOLDER_OF_CLASS = {class_: folder for folder, class_ in CLASS_FOLDERS.items()}


class Nodes:
    def __init__(self) -> None:
        self.at_block: dict[int, Node] = {}
        self.objects: dict[Key, int] = {}  # the inodes of executables
        self.providers: dict[str, int] = {}
        self.homes: dict[int, int] = {}
        self._next = 1

    def new(self) -> int:
        inode = self._next << places.BITS
        self._next += 1
        return inode

    def add(self, inode: int, node: Node) -> int:
        self.at_block[block(inode)] = node
        return inode

    def remove(self, inode: int) -> None:
        self.at_block.pop(block(inode), None)

    def find(self, inode: int) -> Node | None:
        return self.at_block.get(block(inode))

    def object_inode(self, key: Key) -> int:
        inode = self.objects.get(key)
        if inode is None:
            inode = self.objects[key] = self.add(self.new(), OfObject(key, *self.place(key)))
        return inode

    def place(self, key: Key) -> tuple[int, str]:
        """Returns the folder that an object is in, and its name there."""
        above, _, leaf = key[1].rpartition("/")
        if registry.is_own(key) and key[0] != "model":
            return self.homes[int(above.removeprefix(registry.HOME))] | places.HOME_SLOTS[key[0]], leaf
        return (self.provider_inode(above) if above else FOLDER_OF_CLASS[key[0]]), leaf

    def drop(self, key: Key) -> None:
        """Forget an object in a home that is gone: a later object of its name is another file. A name that
        users choose must not take memory for ever."""
        self.remove(self.objects.pop(key))

    def drop_provider(self, name: str) -> None:
        """Forget a provider in a home that is gone, for the same reasons."""
        if (inode := self.providers.pop(name, None)) is not None:
            self.remove(inode)

    def provider_inode(self, name: str) -> int:
        inode = self.providers.get(name)
        if inode is None:
            inode = self.providers[name] = self.add(self.new(), ProviderNode(name))
        return inode

    def home_inode(self, uid: int, gid: int, now: int) -> int:
        inode = self.homes.get(uid)
        if inode is None:
            if len(self.homes) >= MAX_HOMES:
                raise Fault("ENOSPC", f"the mount has {MAX_HOMES} homes, which is the limit")
            inode = self.homes[uid] = self.add(self.new(), Home(uid, gid, now))
        return inode

    def owner_of(self, home: int) -> tuple[int, int]:
        node = self.find(self.homes[home])
        assert isinstance(node, Home)
        return node.uid, node.gid

    def parent(self, inode: int) -> int:
        if inode in FIXED:
            return FIXED[inode][0]
        node = self.find(inode)
        if isinstance(node, OfObject):
            return node.folder if slot(inode) < CONTROL else places.base(inode) | FOLDER
        if isinstance(node, Alias | Temporary):
            return node.folder
        if isinstance(node, Home):
            return places.base(inode) if slot(inode) else HOME
        if isinstance(node, ProviderNode):
            home = node.name.split("/")
            return self.homes[int(home[1])] | places.HOME_SLOTS["model"] if home[1:] else MODEL
        return places.BIN

    def name(self, inode: int) -> str:
        """Returns the last component of the path of an inode that has a block."""
        node = self.at_block[block(inode)]
        if isinstance(node, OfObject):
            if slot(inode) == places.VEILED:
                return LOG
            control = places.control_at(node.key[0], inode)
            return control.name if control else node.leaf + SUFFIXES[slot(inode)]
        if isinstance(node, Home):
            return places.HOME_CLASSES[slot(inode)] if slot(inode) else str(node.uid)
        return node.name.rpartition("/")[2]

    def class_at(self, folder: int) -> tuple[str, int | None] | None:
        """Returns the class of a folder of objects and aliases, and the uid of its home, or None in the root.
        Returns None for any other file."""
        if class_ := CLASS_FOLDERS.get(folder):
            return class_, None
        node = self.find(folder)
        if not isinstance(node, Home) or not slot(folder):
            return None
        return places.HOME_CLASSES[slot(folder)], node.uid

    def path_of_aliases(self, folder: int) -> tuple[str, ...]:
        """Returns the path of a folder of aliases, as names."""
        found = self.class_at(folder)
        assert found
        class_, home = found
        return (class_,) if home is None else ("home", str(home), class_)

    def space(self, inode: int) -> SessionPlace | None:
        """Returns the place of sessions that this folder is, if there can be sessions below it."""
        if inode == MAIN:
            return session_places.shared()
        node = self.find(inode)
        if isinstance(node, OfObject) and slot(inode) == FOLDER and registry.is_own(node.key):
            return session_places.at(tuple(f"{registry.path_of(node.key)}.d".split("/")))
        if isinstance(node, ProviderNode) and "/" in node.name:
            home, uid, name = node.name.split("/")
            return session_places.at((home, uid, "model", name))
        if isinstance(node, Home) and slot(inode):
            return session_places.home(node.uid, self.name(inode))
        return None

    def folder_of_space(self, parts: tuple[str, ...]) -> int | None:
        """Returns the folder of the tree at the path `parts`, if there can be sessions below it."""
        if parts == session_places.SHARED:
            return MAIN
        if parts[0] != "home" or len(parts) < 3:
            return None
        if len(parts) == 3:
            return self.folder_of_aliases(parts)
        key = registry.key_of("/".join(parts).removesuffix(SUFFIXES[FOLDER]))
        if key[0] == "model" and (found := self.providers.get(key[1])):
            return found
        inode = self.objects.get(key)
        return None if inode is None else inode | FOLDER

    def folder_of_aliases(self, path: tuple[str, ...]) -> int:
        if len(path) == 1:
            return FOLDER_OF_CLASS[path[0]]
        return self.homes[int(path[1])] | places.HOME_SLOTS[path[2]]
