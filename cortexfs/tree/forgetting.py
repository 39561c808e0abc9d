"""Makes the kernel forget names of the tree, and never waits for the users of a folder without end.

Main path: `forget` gives each folder's names to a thread of its own, and waits until all are forgotten.

Rules: the kernel forgets a name once nobody lists its folder. A user can list a folder into memory that is
never there, such as a page of a FUSE file of that user's. Nothing ends the wait for it, not even a kill. So
after `PATIENCE` the daemon goes on without that thread, and the folder's names wait for the thread. It holds
the mount and, as a filter has it, the starter's channels, but none of the daemon's locks and other sockets.
This file must never know the tree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyfuse3

PATIENCE = 2.0

log = logging.getLogger("cortexfs.tree")


class _Folder:
    """A folder with names that are not forgotten yet."""

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.names: set[str] = set()  # each once, however often it changes meanwhile
        self.done = threading.Event()
        self.is_late = False


class Forgetting:
    def __init__(
        self,
        alone: Callable[[], None] = lambda: None,
        forget_name: Callable[[int, bytes], None] = pyfuse3.invalidate_entry,
    ) -> None:
        """`alone` makes a thread let go of the process's descriptors (linux/own_descriptors.py)."""
        self._alone = alone
        self._forget_name = forget_name
        self._lock = threading.Lock()
        self._folders: dict[int, _Folder] = {}

    def forget(self, entries: Sequence[tuple[int, str]], patience: float = PATIENCE) -> None:
        """Returns when the kernel has forgotten these names, except in folders that are late."""
        end = time.monotonic() + patience
        for folder in self._begun(entries):
            if folder.is_late or folder.done.wait(max(end - time.monotonic(), 0)):
                continue
            folder.is_late = True
            why = "a process lists it and does not go on; ps(1) shows its state as D"
            log.error(
                "new names in the folder with inode %d are not seen by all users: %s", folder.inode, why
            )

    def _begun(self, entries: Sequence[tuple[int, str]]) -> list[_Folder]:
        touched: dict[int, _Folder] = {}
        with self._lock:
            for inode, name in entries:
                folder = touched[inode] = self._folders.get(inode) or _Folder(inode)
                folder.names.add(name)
                if inode not in self._folders:
                    self._folders[inode] = folder
                    threading.Thread(target=self._work, args=[folder], daemon=True).start()
        return list(touched.values())

    def _work(self, folder: _Folder) -> None:
        self._alone()
        while True:
            with self._lock:
                if not folder.names:
                    del self._folders[folder.inode]
                    folder.done.set()
                    return
                name = folder.names.pop()
            with suppress(OSError):  # ENOENT: the kernel did not know it; ENODEV: the mount has gone
                self._forget_name(folder.inode, name.encode())
