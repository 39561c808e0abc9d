"""The sockets that threads of ours bind through the mount: bind(2) is a mknod that only we may make.

Rules: a single thread may make that name, once; for all others nothing changes. The socket of an agent in a
home is bound in the root, under a name of no object, as sockets are known by their inode. The way to a home's
folder may lead into a file system that its user has mounted there, which may never answer.
This file must never know listeners.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import trio

from cortexfs.core.registry import Object
from cortexfs.core.tree import places
from cortexfs.core.tree.places import RUN_SOCKET, Stale
from cortexfs.core.tree.tree import Tree
from cortexfs.core.wire import BIND_NAME, SOCKET_NAME


class Gone(Exception):
    """The agent in a home was removed meanwhile."""


class Bindings:
    def __init__(self, tree: Tree, forget: Callable[[Stale], None]) -> None:
        self._tree = tree
        self._forget = forget
        self._now: dict[int, tuple[int, str, int]] = {}  # folder, name and inode, by the thread that may bind
        self.is_run_socket_bound = False

    async def free(self, object_: Object | None) -> None:
        """Have the kernel forget the name, as a name that it knows is not free. It waits for requests about
        that folder, and these wait for us: so a thread has to wait."""
        if object_ is not None and object_.home is None:
            stale = Stale([self._place(object_)[:2]], [])
            await trio.to_thread.run_sync(self._forget, stale)

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
        nodes = self._tree.nodes
        if object_.home is not None and object_.key not in self._tree.registry.objects:
            raise Gone
        inode = nodes.object_inode(object_.key) | places.SOCKET
        if object_.home is not None:
            return places.ROOT, BIND_NAME, inode
        return nodes.parent(inode), nodes.name(inode), inode

    def is_expected(self, folder: int, name: str, thread: int) -> bool:
        expected = self._now.get(thread)
        return expected is not None and expected[:2] == (folder, name)

    def take(self, thread: int) -> int:
        """Returns the inode of the socket that is bound, which works once."""
        _, _, inode = self._now.pop(thread)
        self.is_run_socket_bound = self.is_run_socket_bound or inode == RUN_SOCKET
        return inode
