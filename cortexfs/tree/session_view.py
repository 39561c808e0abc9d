"""The files of sessions, and users' logs of runs, in the tree: a view of <state>/sessions and <state>/log.

    lookup, attributes, listing, open      of the present files; the kernel keeps nothing of them
    unlink, rmdir                          how `rm -r` ends sessions
    rename                                 gives a session another name

Rules: the files on disk are the only copy. A file that is made from a log is brought up to date before it is
looked at, and a log shows only the bytes that its readers may see. An inode follows from its path, so that it
is the same at each look, and is remembered here only while the kernel or an open folder holds it. A session
ends with its log; the rest of its folder stays as a ghost until it is removed too, so that `rm -r` has
nothing to complain about.
This file must never know FUSE handles or requests.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import trio
from pyfuse3 import EntryAttributes

from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.tree import session_places
from cortexfs.core.tree.inodes import Nodes
from cortexfs.core.tree.places import Attributes, Keep
from cortexfs.core.tree.session_places import BIT, CONTEXTS, LOGGED, PlaceKind, SessionPlace
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.store import Sessions
from cortexfs.state.run_logs import Logs
from cortexfs.tree import kernel, session_disk
from cortexfs.tree.open_files import Listing, OpenFile, Snapshot
from cortexfs.tree.session_disk import FileFacts, Roots
from cortexfs.tree.session_files import SessionDisk, SessionFileState
from cortexfs.tree.writes import read_only

GHOSTS = 1024  # ended sessions whose folder was not removed; the oldest go
TOGETHER = 500  # entries of a listing that are made before other tasks have their turn
MOMENT = 2_000_000_000  # nanoseconds for which a folder that was seen is taken to be there
LIVES = 4096  # paths that were removed here, and get other inodes when they come back


class _Node:
    """A file or folder that the kernel, or an open folder, knows by its inode."""

    __slots__ = ("attributes", "place", "seen", "users")

    def __init__(self, place: SessionPlace, attributes: Attributes) -> None:
        self.place = place
        self.attributes = attributes
        self.seen = 0  # when the disk had these attributes
        self.users = 0


class _Ghost:
    def __init__(self, paths: set[tuple[str, ...]], since: int) -> None:
        self.paths = paths
        self.since = since


class Spaces:
    def __init__(
        self,
        nodes: Nodes,
        source: Sessions,
        owner: tuple[int, int],
        clock: Callable[[], int],
        logs: Logs,
    ) -> None:
        self._nodes = nodes
        self._source = source
        self._owner = owner
        self._clock = clock
        self._logs = logs
        self._roots = Roots(*(Path(os.path.realpath(root)) for root in (source.root, logs.root)))
        self._disk = SessionDisk(self._roots)
        self._key = secrets.token_bytes(16)  # so that users cannot choose names whose inodes are equal
        self._known: dict[int, _Node] = {}
        self._ghosts: dict[tuple[str, ...], _Ghost] = {}
        self._lives: dict[tuple[str, ...], int] = {}

    # Inodes.

    def place(self, inode: int) -> SessionPlace | None:
        """Returns the place at an inode, if it is a folder of sessions or a file of one."""
        if inode & BIT:
            return self._node(inode).place
        return self._nodes.space(inode)

    def _node(self, inode: int) -> _Node:
        node = self._known.get(inode)
        if node is None:
            raise Fault("ENOENT", "it was removed")
        return node

    def _inode(self, place: SessionPlace) -> int:
        # The times that this place, or a folder of the session that it is in, was removed.
        first = len(place.session or place.parts)
        lives = sum(self._lives.get(place.parts[:end], 0) for end in range(first, len(place.parts) + 1))
        path = "\0".join((*place.parts, str(lives)))
        digest = hashlib.blake2b(path.encode(), digest_size=8, key=self._key).digest()
        number = BIT | (int.from_bytes(digest, "big") >> 4)
        while (node := self._known.get(number)) and node.place != place:
            number = BIT | (number + 1)  # 60 bits: it takes a thousand million names to get here
        return number

    def _learn(self, place: SessionPlace, attributes: Attributes) -> int:
        inode = self._inode(place)
        node = self._known.get(inode)
        if node is None:
            node = self._known[inode] = _Node(place, attributes)
        node.attributes, node.seen = attributes, self._clock()
        node.users += 1
        return inode

    def hold(self, inode: int) -> None:
        """Count one more reference of the kernel to this inode."""
        self._known[inode].users += 1

    def forget(self, inodes: Iterable[tuple[int, int]]) -> None:
        """Count down references that the kernel, or an open folder, has dropped."""
        for inode, count in inodes:
            if inode & BIT and (node := self._known.get(inode)):
                node.users -= count
                if node.users <= 0:
                    del self._known[inode]

    # Looking.

    async def lookup(self, folder: SessionPlace, name: str) -> EntryAttributes | None:
        place = folder.child(name)
        if place is None:
            return None
        if entry := self._just_listed(place):
            return entry
        attributes = await self._look(place)
        return kernel.entry(self._learn(place, attributes), attributes) if attributes else None

    def _just_listed(self, place: SessionPlace) -> EntryAttributes | None:
        """Returns the entry of a folder that was seen within MOMENT. `ls -l` asks for each session that it
        has listed, and each time for the folders above it."""
        if place.kind not in (PlaceKind.SESSION, PlaceKind.OBJECT) or place.session in self._ghosts:
            return None
        inode = self._inode(place)
        node = self._known.get(inode)
        if node is None or not 0 <= self._clock() - node.seen < MOMENT:
            return None
        node.users += 1
        return kernel.entry(inode, node.attributes)

    async def attributes(self, inode: int) -> Attributes:
        """Returns the present attributes, or the last ones of a removed file that is still in use."""
        node = self._node(inode)
        found = await self._look(node.place) if self._inode(node.place) == inode else None
        node.attributes = found or node.attributes._replace(links=0)
        return node.attributes

    def entry(self, inode: int) -> EntryAttributes:
        """Returns the entry as it was when its folder was listed."""
        node = self._node(inode)
        keep = Keep.LISTED if node.place.kind is PlaceKind.SESSION else node.attributes.keep
        return kernel.entry(inode, node.attributes._replace(keep=keep))

    async def _look(self, place: SessionPlace) -> Attributes | None:
        if place.made_from and (place.is_index or not place.is_folder):
            await self._freshen(place)
        self._settle(place)
        found = await self._disk.do(session_disk.look, self._roots, place)
        if found is None:
            return self._ghost_of(place)
        self._revive(place)
        return self._attributes(place, found)

    async def _freshen(self, place: SessionPlace) -> None:
        assert place.made_from
        is_facts = place.kind is PlaceKind.FACTS
        await (self._source.ordered if is_facts else self._source.freshen)(place.made_from)

    def _settle(self, place: SessionPlace) -> None:
        """Write the lines of runs that wait in memory, so that they are shown."""
        if place.kind in LOGGED and place.uid is not None:
            self._logs.settle(place.uid)

    def _attributes(self, place: SessionPlace, found: FileFacts) -> Attributes:
        owner = self._owner if place.uid is None else (place.uid, place.uid)
        size = found.size
        if place.kind is PlaceKind.LOG and (visible := self._visible(place)) is not None:
            size = min(size, visible)
        return Attributes(place.mode, *owner, size, found.mtime, _keep(place))

    def _visible(self, place: SessionPlace) -> int | None:
        return self._source.visible(self._address(place))

    @staticmethod
    def _address(place: SessionPlace) -> Address:
        assert place.session
        space = Space.shared() if place.uid is None else Space.private(place.uid)
        return Address(space, *place.object, place.session[-1])

    async def listing(self, folder: SessionPlace, inode: int) -> Listing:
        """Returns a folder's entries, held until `forget`. Of the tree's folders, only those on disk."""
        if folder.made_from:
            await self._freshen(folder)
        self._settle(folder)
        found = await self._disk.do(session_disk.listed, self._roots, folder)
        entries = self._dots(folder, inode) if inode & BIT else []
        for count, (place, each) in enumerate(found):
            self._revive(place)
            entries.append((place.name, self._learn(place, self._attributes(place, each))))
            if count % TOGETHER == TOGETHER - 1:
                await trio.lowlevel.checkpoint()
        for place in self._ghosts_in(folder):
            if ghost := self._ghost_of(place):
                entries.append((place.name, self._learn(place, ghost)))
        return entries

    def _dots(self, folder: SessionPlace, inode: int) -> Listing:
        self.hold(inode)
        above = self._nodes.folder_of_space(folder.parts[:-1])
        if above is None:
            place = session_places.at(folder.parts[:-1])
            assert place
            above = self._inode(place)
            if above in self._known:
                self.hold(above)
            else:
                self._learn(place, self._attributes(place, FileFacts(0, 0)))
        return [(".", inode), ("..", above)]

    async def open(self, inode: int) -> OpenFile:
        place = self._node(inode).place
        if self._inode(place) != inode or self._ghost_of(place):
            return Snapshot(b"")
        if place.made_from:
            await self._freshen(place)
        return await self._disk.open(place, lambda: self._state(place, inode))

    def _state(self, place: SessionPlace, inode: int) -> SessionFileState:
        is_there = self._inode(place) == inode
        is_log = is_there and place.kind is PlaceKind.LOG
        return SessionFileState(is_there, self._visible(place) if is_log else None)

    # Removing and renaming.

    async def holder(self, inode: int, name: str) -> SessionPlace | None:
        """Returns the folder if the name in it is not the tree's, else None."""
        folder = self.place(inode)
        place = folder.child(name) if folder else None
        return folder if inode & BIT or (place and await self._look(place)) else None

    async def unlink(self, folder: SessionPlace, name: str) -> None:
        """Remove a file. A session ends when its log is removed."""
        place = await self._child(folder, name)
        assert not place.is_folder  # the kernel has checked this
        if ghost := self._ghosts.get(place.session or ()):
            ghost.paths.discard(place.parts)
        elif place.kind is PlaceKind.LOG:
            await self._end(place)
        else:
            await self._remove(place)
        if place.kind is PlaceKind.RUNS:  # tail -F must see that the next one is another file
            self._outlive(place.parts)

    async def rmdir(self, folder: SessionPlace, name: str) -> None:
        """Remove an empty folder, or a folder of a session that has ended, whatever is left in it."""
        place = await self._child(folder, name)
        if place.parts in self._ghosts:
            self._bury(place.parts)
            return
        if ghost := self._ghosts.get(place.session or ()):
            depth = len(place.parts)
            ghost.paths = {parts for parts in ghost.paths if parts[:depth] != place.parts}
            return
        if any(parts[: len(place.parts)] == place.parts for parts in self._ghosts):
            raise Fault("ENOTEMPTY", "it contains folders of sessions")
        await self._remove(place)
        self._outlive(place.parts)

    async def rename(self, folder: int, name: str, new_folder: int, new: str) -> bool:
        """Give a session another name. Returns True, or False if neither name is in a folder of sessions."""
        source, destination = await self.holder(folder, name), await self.holder(new_folder, new)
        if source is None and destination is None:
            return False
        place = await self._child(source, name) if source and source == destination else None
        target = source.child(new) if source else None
        if place is None or place.kind is not PlaceKind.SESSION or place.parts in self._ghosts:
            raise read_only()
        if target is None or target.kind is not PlaceKind.SESSION:
            raise Fault("EINVAL", f"{new} cannot be the name of a session")
        if await self._look(target) is not None:
            raise Fault("EEXIST", f"{new} exists already")
        await self._source.rename(self._address(place), new)
        self._outlive(place.parts)
        self._outlive(target.parts)
        return True

    async def _child(self, folder: SessionPlace, name: str) -> SessionPlace:
        place = folder.child(name)
        if place is None or not place.is_listed:
            raise read_only()
        if await self._look(place) is None:
            raise Fault("ENOENT", f"{name} does not exist")
        return place

    async def _remove(self, place: SessionPlace) -> None:
        with os_faults(f"{place.name} cannot be removed"):
            await self._source.discard(lambda: session_disk.remove(self._roots, place))

    async def _end(self, log: SessionPlace) -> None:
        assert log.session
        session = SessionPlace(log.session, PlaceKind.SESSION)
        found = await self._disk.do(session_disk.below, self._roots, session)
        await self._source.remove(self._address(log))
        parts = {place.parts for place in found if place.kind is not PlaceKind.LOG}
        self._ghosts[session.parts] = _Ghost(parts, self._clock())
        if len(self._ghosts) > GHOSTS:
            self._bury(next(iter(self._ghosts)))

    # Ghosts: the files that are left of sessions that ended.

    def _ghost_of(self, place: SessionPlace) -> Attributes | None:
        ghost = self._ghosts.get(place.session or ())
        if ghost is None or (place.parts != place.session and place.parts not in ghost.paths):
            return None
        return self._attributes(place, FileFacts(0, ghost.since))

    def _ghosts_in(self, folder: SessionPlace) -> Iterator[SessionPlace]:
        ghost = self._ghosts.get(folder.session or ())
        among: Iterable[tuple[str, ...]] = ghost.paths if ghost else self._ghosts
        names = [parts[-1] for parts in among if parts[:-1] == folder.parts]
        return (place for name in names if (place := folder.child(name)))

    def _revive(self, place: SessionPlace) -> None:
        """Bury the ghost in a session's place, as there is another session now."""
        if place.session in self._ghosts:
            self._bury(place.session)

    def _bury(self, session: tuple[str, ...]) -> None:
        del self._ghosts[session]
        self._outlive(session)

    def _outlive(self, parts: tuple[str, ...]) -> None:
        """Have the next file of this name get another inode, so that the kernel sees the change."""
        self._lives[parts] = self._lives.pop(parts, 0) + 1
        if len(self._lives) > LIVES:
            del self._lives[next(iter(self._lives))]

    # Homes.

    async def homes(self, names: Iterable[str] | None = None) -> list[int]:
        return await self._disk.do(session_disk.homes, self._roots, names)


def _keep(place: SessionPlace) -> Keep:
    """Returns the rule by which the kernel keeps a place. Most folders go by an rmdir here only, of which it
    knows. But a session may expire, and an agent be made where only its sessions were."""
    if place.kind in (PlaceKind.SESSION, PlaceKind.OBJECT, PlaceKind.TOOL, *CONTEXTS):
        return Keep.PASSING
    return Keep.FOLDER if place.is_folder else Keep.NOTHING
