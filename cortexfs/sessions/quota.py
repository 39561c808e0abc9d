"""The disk space that sessions may take: each, and all in one space (a user's, or the shared one).

Rules: the bytes of a space are counted once, when it is first used, and followed from then on: logs, and the
long outputs that agents keep in context/output (an output that is removed by itself counts until the next
start). A user whose share is full still reads and removes. His runs end as they should, with a few bytes
more; new messages are refused.
This file must never know what is in a session.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import trio

from cortexfs.core.tree import session_places
from cortexfs.linux.subordinates import person_of
from cortexfs.sessions import layout
from cortexfs.sessions.layout import EVENTS, Space
from cortexfs.sessions.log import Most, Share


class Shares:
    def __init__(self, root: Path, most: Most) -> None:
        self._root = root
        self._most = most
        self._known: dict[str, Share] = {}  # by the folder of the space
        self._of_person: dict[Space, Share] = {}
        self._counting = trio.Lock()

    async def of(self, space: Space) -> Share:
        if space.folder not in self._known:
            async with self._counting:
                if space.folder not in self._known:
                    found = Share(self._most)
                    await trio.to_thread.run_sync(self._count, space, found)
                    whose = space if space == Space.shared() else Space.private(person_of(space.uid))
                    share = self._of_person.setdefault(whose, Share(self._most))
                    share.bytes += found.bytes
                    share.sessions += found.sessions
                    self._known[space.folder] = share
        return self._known[space.folder]

    def removed(self, space: Space, size: int | None) -> None:
        """Count a session as removed, with the bytes that it took, or None if it had no log."""
        if size is not None and (share := self._known.get(space.folder)):
            share.sessions -= 1
            share.bytes -= size

    def grew(self, space: Space, size: int) -> None:
        """Count the bytes by which the outputs that an agent keeps have grown."""
        if share := self._known.get(space.folder):
            share.bytes += size

    def _count(self, space: Space, share: Share) -> None:
        for class_, object in layout.objects(self._root, space):
            folder = self._root.joinpath(*layout.object_parts(space, class_, object))
            for name in layout.session_names(folder):
                if (size := size_of(folder / name)) is not None:
                    share.bytes += size
                    share.sessions += 1


def size_of(folder: Path) -> int | None:
    """Returns the bytes of a session that count, or None if there is no log."""
    try:
        size = os.stat(folder / EVENTS, follow_symlinks=False).st_size
    except OSError:
        return None
    with suppress(OSError), os.scandir(folder / session_places.CONTEXT_NAME / "output") as found:
        for each in found:
            with suppress(OSError):
                size += each.stat(follow_symlinks=False).st_size
    return size
