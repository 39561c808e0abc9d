"""How much of the disk sessions may take: each, and all in one space (a user's, or the shared one).

Rules: what is there is counted once, when a space is first used, and followed from then on: logs, and the
long outputs that agents keep in context/output (one that is removed by itself counts until the next start).
Whoever has his share still reads and removes, and his runs end as they should, with a few bytes more; nothing
new is said.
This file must never know what is said.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import trio

from cortexfs.core.tree import session_places
from cortexfs.sessions import layout
from cortexfs.sessions.layout import EVENTS, Space
from cortexfs.sessions.log import Most, Share


class Shares:
    def __init__(self, root: Path, most: Most) -> None:
        self._root = root
        self._most = most
        self._known: dict[str, Share] = {}
        self._counting = trio.Lock()

    async def of(self, space: Space) -> Share:
        if space.folder not in self._known:
            async with self._counting:
                if space.folder not in self._known:
                    share = Share(self._most)
                    await trio.to_thread.run_sync(self._count, space, share)
                    self._known[space.folder] = share
        return self._known[space.folder]

    def removed(self, space: Space, size: int | None) -> None:
        """A session's log of so many bytes has gone, if there was one."""
        if size is not None and (share := self._known.get(space.folder)):
            share.sessions -= 1
            share.bytes -= size

    def grew(self, space: Space, size: int) -> None:
        """An agent has kept outputs of so many bytes, net of those that went for them."""
        if share := self._known.get(space.folder):
            share.bytes += size

    def _count(self, space: Space, share: Share) -> None:
        for class_, object in layout.objects(self._root, space):
            folder = self._root.joinpath(*layout.object_parts(space, class_, object))
            for name in layout.session_names(folder):
                if (size := taken(folder / name)) is not None:
                    share.bytes += size
                    share.sessions += 1


def taken(folder: Path) -> int | None:
    """The bytes of a session that count; None where there is no log."""
    try:
        size = os.stat(folder / EVENTS, follow_symlinks=False).st_size
    except OSError:
        return None
    with suppress(OSError), os.scandir(folder / session_places.CONTEXT_NAME / "output") as found:
        for each in found:
            with suppress(OSError):
                size += each.stat(follow_symlinks=False).st_size
    return size
