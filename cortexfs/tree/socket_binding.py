"""The sockets that threads of ours bind through the mount: bind(2) is a mknod that only we may make.

Rules: a single thread may make that name, once; for all others nothing changes. An object's socket is bound
under a name of no object, as sockets are known by their inode, in a folder that only the daemon's owner can
open. For bind(2) waits for all who list the folder, and a user's listing may never end (forgetting.py). The
way to a home may lead into a file system that its user has mounted there, which may never answer.
This file must never know listeners.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from cortexfs.core.registry import Object
from cortexfs.core.tree import places
from cortexfs.core.tree.places import RUN_SOCKET
from cortexfs.core.tree.tree import Tree
from cortexfs.core.wire import BIND_NAME, SOCKET_NAME

_NAME = BIND_NAME.rpartition("/")[2]


class Gone(Exception):
    """The agent in a home was removed meanwhile."""


class Bindings:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._now: dict[int, tuple[int, str, int]] = {}  # folder, name and inode, by the thread that may bind
        self.is_run_socket_bound = False

    @contextlib.contextmanager
    def expecting(self, object_: Object | None = None, thread: int = 0) -> Iterator[None]:
        """Let a thread, by default the calling one, bind an object's socket, or `.run.sock` in the root."""
        thread = thread or threading.get_native_id()
        self._now[thread] = self._place(object_)
        try:
            yield
        finally:
            self._now.pop(thread, None)

    def _place(self, object_: Object | None) -> tuple[int, str, int]:
        if object_ is None:
            return (places.ROOT, SOCKET_NAME, RUN_SOCKET)
        if object_.home is not None and object_.key not in self._tree.registry.objects:
            raise Gone
        return places.BIND, _NAME, self._tree.nodes.object_inode(object_.key) | places.SOCKET

    def is_expected(self, folder: int, name: str, thread: int) -> bool:
        expected = self._now.get(thread)
        return expected is not None and expected[:2] == (folder, name)

    def take(self, thread: int) -> int:
        """Returns the inode of the socket that is bound, which works once."""
        _, _, inode = self._now.pop(thread)
        self.is_run_socket_bound = self.is_run_socket_bound or inode == RUN_SOCKET
        return inode
