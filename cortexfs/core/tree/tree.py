"""The content of the tree, from the root to the last control file, and the facts about each place.

Rules: an object hides an alias of the same name. Owners and modes decide about access, and the
kernel checks them; any other refusal is a Fault. Methods change only memory: their caller has stored
the change before. Time comes in as an argument.
This file must never know FUSE, the kernel's caches, or the disk.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key, Object, Registry, beginning, diff, is_own, own_key
from cortexfs.core.tree import controls, edits, metadata, places
from cortexfs.core.tree.aliases import Aliases
from cortexfs.core.tree.controls import Control
from cortexfs.core.tree.edits import Temporaries, Temporary
from cortexfs.core.tree.inodes import Nodes
from cortexfs.core.tree.places import (
    CONTROL,
    FIXED,
    FOLDER,
    HOME,
    SOCKET,
    SUFFIXES,
    Attributes,
    Home,
    Keep,
    OfObject,
    ProviderNode,
    slot,
)
from cortexfs.core.tree.written_values import Values


class Tree:
    def __init__(
        self,
        *,
        owner: tuple[int, int],
        shebang: bytes,
        programs: Mapping[str, str],
        tool_timeout: float,
        now: int,
    ) -> None:
        self.owner = owner
        self.registry = Registry()
        self._shebang = shebang
        self._tool_timeout = tool_timeout
        self._began = now
        self._mtimes: dict[int, int] = {}  # only those that differ from the defaults
        self.nodes = Nodes()
        self._fixed = {(parent, name): inode for inode, (parent, name, _) in FIXED.items() if name[:1] != "."}
        self._programs = {places.FIRST_PROGRAM + at: item for at, item in enumerate(sorted(programs.items()))}
        self._fixed |= {(places.BIN, name): inode for inode, (name, _) in self._programs.items()}
        self.aliases = Aliases(self.nodes, owner, self.lookup, self.touch)
        self.temporaries = Temporaries()
        self.values = Values()

    # Objects and files by inode.

    def runnable(self, inode: int, uid: int) -> Object | None:
        """Returns the object with this executable, if it serves this user. Every call passes here."""
        object_ = self.object_at(inode)
        return object_ if object_ and object_.home in (None, uid) else None

    def object_of(self, key: Key) -> Object | None:
        return self.registry.objects.get(key)

    def object_at(self, inode: int) -> Object | None:
        """Returns the object with this executable, or None."""
        node = self.nodes.at_block.get(inode >> places.BITS)
        if inode & places.SLOT or type(node) is not OfObject:
            return None
        return self.registry.objects.get(node.key)

    def owner_object(self, inode: int) -> Object | None:
        """Returns the object of the executable, socket, folder or control at this inode, or None."""
        node = self.nodes.find(inode)
        return self.registry.objects.get(node.key) if isinstance(node, OfObject) else None

    def is_of_registry(self, inode: int) -> bool:
        """Returns True if this is a provider, an object, or a file of one."""
        return self.owner_object(inode) is not None or isinstance(self.nodes.find(inode), ProviderNode)

    def veiled(self, inode: int, uid: int) -> int:
        """Returns the inode that this user sees in place of `inode`: for an object's log, only its owner sees
        that of the log. Both inodes have one name, so the kernel must not cache the entry."""
        found = self.control_at(inode)
        is_hidden = found and found[1].name == controls.LOG and uid not in (0, self.owner[0])
        return inode | places.VEILED if is_hidden and found and found[0].home is None else inode

    def control_at(self, inode: int) -> tuple[Object, Control] | None:
        object_ = self.owner_object(inode)
        control = places.control_at(object_.class_, inode) if object_ else None
        return (object_, control) if object_ and control else None

    def refusal(self, inode: int) -> str:
        """Returns the reason why the last value of a control in a home was refused, or an empty text."""
        found = self.control_at(inode)
        return self.values.refusals.get((found[0].key, found[1].name), "") if found else ""

    def temporary_at(self, inode: int) -> Temporary | None:
        node = self.nodes.find(inode)
        return node if isinstance(node, Temporary) else None

    def home_of(self, inode: int) -> int | None:
        """Returns the uid of the home of this file's object, or None."""
        temporary = self.temporary_at(inode)
        object_ = self.owner_object(temporary.folder if temporary else inode)
        return object_.home if object_ else None

    # Names.

    def lookup(self, folder: int, name: str) -> int | None:
        if found := self._fixed.get((folder, name)):
            return found
        if place := self.nodes.class_at(folder):
            return self._in_class(*place, name) or self.aliases.find(folder, name)
        if folder == HOME:
            is_number = name.isascii() and name.isdecimal() and name == str(int(name))
            return self.nodes.homes.get(int(name)) if is_number else None
        node = self.nodes.find(folder)
        if isinstance(node, ProviderNode):
            return self._of_object("model", f"{node.name}/", name)
        if isinstance(node, OfObject) and slot(folder) == FOLDER:
            return self._in_control_folder(node.key, folder, name)
        if isinstance(node, Home):
            kind = places.HOME_SLOTS.get(name)
            return folder | kind if kind else None
        return None

    def _in_class(self, class_: str, home: int | None, name: str) -> int | None:
        if class_ != "model":
            return self._of_object(class_, beginning(home), name)
        is_there = name in self.registry.within(beginning(home).rstrip("/"))
        return self.nodes.provider_inode(beginning(home) + name) if is_there else None

    def _of_object(self, class_: str, prefix: str, name: str) -> int | None:
        leaf, slot_number = places.leaf_and_slot(name)
        object_ = self.registry.objects.get((class_, prefix + leaf))
        if object_ is None or (slot_number == SOCKET and not places.has_socket(object_)):
            return None
        return self.nodes.object_inode(object_.key) | slot_number

    def _in_control_folder(self, key: Key, folder: int, name: str) -> int | None:
        object_ = self.registry.objects.get(key)
        if object_ is None:
            return None
        slot_number = places.control_slot(key[0], name)
        if slot_number is not None and controls.has(object_, name):
            return None if self.values.is_absent(key, name) else self.nodes.object_inode(key) | slot_number
        temporary = self.temporaries.find(folder, name)
        return temporary.inode if temporary else None

    def listing(self, folder: int) -> list[tuple[str, int]]:
        return [(".", folder), ("..", self.nodes.parent(folder)), *sorted(self._children(folder))]

    def _children(self, folder: int) -> Iterator[tuple[str, int]]:
        yield from ((name, inode) for (above, name), inode in self._fixed.items() if above == folder and name)
        node = self.nodes.find(folder)
        if place := self.nodes.class_at(folder):
            yield from self._objects_in(*place)
        elif folder == HOME:
            yield from ((str(uid), inode) for uid, inode in self.nodes.homes.items())
        elif isinstance(node, ProviderNode):
            for leaf in self.registry.within(node.name):
                yield from self._triple(("model", f"{node.name}/{leaf}"), leaf)
        elif isinstance(node, Home):
            yield from ((name, folder | at) for name, at in places.HOME_SLOTS.items())
        elif isinstance(node, OfObject) and node.key in self.registry.objects:
            yield from self._controls_in(node.key)
            yield from self.temporaries.names(folder)
        yield from self.aliases.visible(folder)

    def _objects_in(self, class_: str, home: int | None) -> Iterator[tuple[str, int]]:
        if class_ == "model":
            for name in self.registry.within(beginning(home).rstrip("/")):
                yield name, self.nodes.provider_inode(beginning(home) + name)
        else:
            for name in self.registry.names(class_, home):
                yield from self._triple(own_key(class_, home, name), name)

    def _triple(self, key: Key, leaf: str) -> Iterator[tuple[str, int]]:
        inode = self.nodes.object_inode(key)
        yield leaf, inode
        yield leaf + SUFFIXES[FOLDER], inode | FOLDER
        if places.has_socket(self.registry.objects[key]):
            yield leaf + SUFFIXES[SOCKET], inode | SOCKET

    def _controls_in(self, key: Key) -> Iterator[tuple[str, int]]:
        inode, object_ = self.nodes.object_inode(key), self.registry.objects[key]
        for row, control in enumerate(controls.CONTROLS[key[0]]):
            if controls.has(object_, control.name) and not self.values.is_absent(key, control.name):
                yield control.name, inode | (CONTROL + row)

    # Attributes and values.

    def attributes(self, inode: int) -> Attributes | None:
        """Returns the attributes, or None if there is no file. It knows no sizes of `status` and logs."""
        mtime = self._mtimes.get(inode, self._began)
        if fixed := FIXED.get(inode):
            return Attributes(fixed[2], *self.owner, 0, mtime, places.ASKED.get(inode, Keep.ALWAYS))
        if program := self._programs.get(inode):
            return Attributes(places.LINK_MODE, *self.owner, len(program[1].encode()), mtime, Keep.ALWAYS)
        node = self.nodes.find(inode)
        if isinstance(node, OfObject):
            object_ = self.registry.objects.get(node.key)
            return self._of_object_at(inode, object_) if object_ else None
        if isinstance(node, places.Alias):
            return self.aliases.attributes(node)
        if isinstance(node, Temporary):
            mode = stat.S_IFREG | node.mode
            return Attributes(
                mode, node.uid, node.gid, len(node.data), node.mtime, Keep.NOTHING, int(node.linked)
            )
        if isinstance(node, Home):
            mtime = self._mtimes.get(inode, node.since)
            mode = places.FOLDER_MODE if slot(inode) else places.PRIVATE_MODE
            return Attributes(mode, node.uid, node.gid, 0, mtime, Keep.ALWAYS)
        if isinstance(node, ProviderNode) and "/" in node.name:
            owner = self.nodes.owner_of(int(node.name.split("/")[1]))
            return Attributes(places.PRIVATE_MODE, *owner, 0, mtime, Keep.PASSING)
        return Attributes(places.FOLDER_MODE, *self.owner, 0, mtime, Keep.ALWAYS) if node else None

    def owner_of(self, object_: Object) -> tuple[int, int]:
        """Returns the uid and gid of the object's files."""
        return self.owner if object_.home is None else self.nodes.owner_of(object_.home)

    def _of_object_at(self, inode: int, object_: Object) -> Attributes | None:
        own = object_.home is not None
        keep = Keep.NOTHING if own else Keep.ALWAYS
        uid, gid = self.owner_of(object_)
        registered = int(object_.registered * 1e9)
        base_mtime = self._mtimes.get(places.base(inode), registered)
        mtime = self._mtimes.get(inode, registered)
        kind = slot(inode)
        if kind == places.EXECUTABLE:
            return Attributes(places.PROGRAM_MODE, uid, gid, len(self.executable(object_)), base_mtime, keep)
        if kind == FOLDER:  # in a home, it may become a folder of sessions alone
            return Attributes(places.FOLDER_MODE, uid, gid, 0, mtime, Keep.PASSING if own else Keep.ALWAYS)
        if kind == SOCKET:
            mode = places.OWN_SOCKET_MODE if own else places.SOCKET_MODE
            return Attributes(mode, uid, gid, 0, mtime, keep)
        control = places.control_at(object_.class_, inode)
        if kind == places.VEILED or (control and control.name == controls.LOG):
            return Attributes(places.LOG_MODE, uid, gid, 0, registered, Keep.NOTHING)
        if control is None:
            return None
        size = len(self.value(object_, control))
        if control.check is None:
            return Attributes(places.READ_ONLY_MODE, uid, gid, size, base_mtime, Keep.ALWAYS)
        written = self.values.find(object_.key, control.name)
        mtime = written.mtime if written else mtime
        return Attributes(places.WRITABLE_MODE, uid, gid, size, mtime, Keep.NOTHING)

    def executable(self, object_: Object) -> bytes:
        return metadata.render(object_, self._shebang, lambda name: self.control(object_, name))

    def control(self, object_: Object, name: str) -> str:
        """Returns the value of a control that counts now, as text."""
        control = controls.BY_NAME.get((object_.class_, name))
        return self.value(object_, control).decode() if control else ""

    def value(self, object_: Object, control: Control) -> bytes:
        written = self.values.of.get(object_.key, {}).get(control.name)
        if written and written.data is not None:
            return written.data
        if control.name == "timeout" and object_.timeout is None:
            object_ = msgspec.structs.replace(object_, timeout=self._tool_timeout)
        return controls.line_ended(control.render(object_))

    def is_steady(self, inode: int) -> bool:
        """Returns True if the file changes only with its object, so that the kernel may cache its bytes."""
        if self.object_at(inode):
            return True
        found = self.control_at(inode)
        return found is not None and found[1].check is None and found[1].name != controls.LOG

    def steady(self, inode: int) -> bytes:
        """Returns the bytes of a steady file, or none if its object is gone."""
        if object_ := self.object_at(inode):
            return self.executable(object_)
        found = self.control_at(inode)
        return self.value(*found) if found else b""

    def link(self, inode: int) -> bytes:
        if program := self._programs.get(inode):
            return program[1].encode()
        if alias := self.aliases.at(inode):
            return alias.target
        raise Fault("EINVAL", "this is not a link")

    # Changes.

    def apply(self, registry: Registry, now: int) -> places.Stale:
        """Take over another registry. Returns only entries and inodes that the kernel may have seen."""
        changes = diff(self.registry, registry)
        stale = places.Stale([], [])
        folders = set()
        for key in changes.added + changes.removed:
            folder, leaf = self.nodes.place(key)
            stale.entries.extend((folder, leaf + suffix) for suffix in SUFFIXES.values())
            folders.add(folder)
        for key in changes.removed + changes.changed:
            self._outdate(key, stale)
        for key in changes.removed:
            self._mtimes.pop(self.nodes.object_inode(key), None)
            self.temporaries.remove_all(self.nodes.object_inode(key) | FOLDER)
            if is_own(key):
                self._bury(key)
                if key[0] == "model" and not registry.within(above := key[1].rpartition("/")[0]):
                    self.nodes.drop_provider(above)
        for key in filter(is_own, changes.added):
            self.values.begin(key)
        for key in changes.changed:  # their folder stays, as it may be a process's working directory
            folder, leaf = self.nodes.place(key)
            stale.entries.append((folder, leaf + SUFFIXES[SOCKET]))
            self._mtimes[self.nodes.object_inode(key)] = now
        if providers := {*self.registry.within("")} ^ {*registry.within("")}:
            stale.entries.extend((places.MODEL, name) for name in sorted(providers))
            folders.add(places.MODEL)
        self._mtimes |= dict.fromkeys(folders, now)
        for lost in [folder for folder in folders if folder not in FIXED and not self.nodes.find(folder)]:
            del self._mtimes[lost]  # the folder of a provider in a home
        stale.inodes.extend(sorted(folders))
        self.registry = registry
        return stale

    def _bury(self, key: Key) -> None:
        """Forget all about an object in a home, as its user may make and remove any number of them."""
        inode = self.nodes.object_inode(key)
        for at in range(1 << places.BITS):
            self._mtimes.pop(inode | at, None)
        self.nodes.drop(key)

    def _outdate(self, key: Key, stale: places.Stale) -> None:
        inode = self.nodes.objects.get(key)
        if inode is not None:
            rows = range(CONTROL, CONTROL + len(controls.CONTROLS[key[0]]))
            stale.inodes.extend([inode, inode | FOLDER, *(inode | row for row in rows)])

    def check_temporary(self, folder: int, name: str) -> None:
        """Raises a Fault if no temporary file can have this name here."""
        object_ = self.owner_object(folder)
        if object_ is None or slot(folder) != FOLDER:
            raise Fault("EROFS", "files can be made in a .d/ only")
        if not edits.is_temporary(name, tuple(row.name for row in controls.CONTROLS[object_.class_])):
            raise Fault("EROFS", f"{name} is neither a control of this class nor an editor's temporary file")
        if self.temporaries.find(folder, name) is None:
            self.temporaries.check_room(folder, object_.home)

    def add_temporary(self, folder: int, name: str, owner: tuple[int, int], mode: int, now: int) -> Temporary:
        """Add a temporary file. Another temporary file of that name loses the name."""
        self.check_temporary(folder, name)
        if former := self.temporaries.find(folder, name):
            self.temporaries.remove(former)
        object_ = self.owner_object(folder)
        home = object_.home if object_ else None
        if home is not None:
            self.temporaries.check_share(home)
        temporary = Temporary(self.nodes.new(), folder, name, *owner, mode & edits.MODES, now, home)
        self.nodes.add(temporary.inode, temporary)
        self.temporaries.add(temporary)
        self._mtimes[folder] = now
        return temporary

    def forget_temporary(self, temporary: Temporary) -> None:
        """Forget a temporary file that has no name and no opens."""
        self.temporaries.forget(temporary)
        self.nodes.remove(temporary.inode)

    def home(self, uid: int, gid: int, now: int) -> int:
        """Returns the home of a user, which exists from now on."""
        if uid not in self.nodes.homes:
            self._mtimes[HOME] = now
        return self.nodes.home_inode(uid, gid, now)

    def name(self, inode: int) -> str:
        """Returns the last component of its path."""
        if inode in FIXED:
            return FIXED[inode][1]
        return self._programs[inode][0] if inode in self._programs else self.nodes.name(inode)

    def touch(self, inode: int, now: int) -> None:
        self._mtimes[inode] = now
