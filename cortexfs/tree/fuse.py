"""The tree as a mount: inodes and handles in, attributes, bytes and FUSEErrors out.

Rules: an adapter and nothing else. core/tree/tree.py defines the tree, writes.py has the changes of its
users, session_view.py the files of sessions. `guarded` stands around every handler that can fail. Nothing
here waits for a path inside the mount, and the kernel is told to forget in a thread only (a notification
waits for handlers that hold the same folder). Inode numbers are core/tree/places.py's.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileInfo,
    FUSEError,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
)

from cortexfs.core.errors import Fault, errno_of
from cortexfs.core.registry import Key, Object, Registry, is_own
from cortexfs.core.tree import edits, metadata, places
from cortexfs.core.tree.places import ROOT, RUN_SOCKET, UNLISTED, Stale
from cortexfs.core.tree.session_places import BIT
from cortexfs.core.tree.tree import Tree
from cortexfs.core.wire import SOCKET_NAME
from cortexfs.sessions.store import Sessions
from cortexfs.state.control_store import ControlStore
from cortexfs.state.run_logs import Logs
from cortexfs.tree import kernel
from cortexfs.tree.attributes import Entries
from cortexfs.tree.home_objects import OwnObjects
from cortexfs.tree.kernel import guarded
from cortexfs.tree.open_files import FIRST_HANDLE, ControlFile, Handles, LogFile, OpenFile
from cortexfs.tree.session_view import Spaces
from cortexfs.tree.socket_binding import Bindings
from cortexfs.tree.writes import TreeWrites, read_only

WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
ROOM = edits.MAX_IN_TREE * edits.MAX_SIZE  # the size that df shows: all that may be written here


class Filesystem(pyfuse3.Operations):
    """The tree for the kernel's requests. Its parameters differ in a mount, a test and a bench."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        *,
        store: ControlStore,
        logs: Logs,
        sessions: Sessions,
        status: Callable[[], str],
        unlisted: Mapping[int, Callable[[], bytes]] = MappingProxyType({}),
        shebang: bytes,
        bin_targets: Mapping[str, str],
        owner: tuple[int, int] | None = None,
        state: Path | None = None,
        forgotten: Callable[[Key], None] = lambda _: None,
        tool_timeout: float = 1800.0,
        strict: bool = False,
        clock: Callable[[], int] = time.time_ns,
        forget: Callable[[Stale], None] = kernel.forget,
    ) -> None:
        super().__init__()
        self.strict = strict
        self._clock = clock
        self._forget = forget
        self.tree = Tree(
            owner=owner or (os.getuid(), os.getgid()),
            shebang=shebang,
            programs=bin_targets,
            tool_timeout=tool_timeout,
            now=clock(),
        )
        self._changes = TreeWrites(self.tree, store, clock)
        self.own = OwnObjects(self.tree, self._changes, state, clock, forgotten)
        self.bindings = Bindings(self.tree)
        self._spaces = Spaces(self.tree.nodes, sessions, self.tree.owner, clock, logs)
        self._entries = Entries(self.tree, self._spaces, logs, status, unlisted, clock)
        self._handles = Handles()
        self.control = self.tree.control  # the value that counts for the next run
        self.object_of: Callable[[int, int], Object | None] = self.tree.runnable

    # For the daemon.

    def load(self, registry: Registry) -> None:
        """Show these objects, and the tree's parts on disk. Call this once, before all other methods."""
        self._changes.load()
        self.tree.home(*self.tree.owner, self._clock())
        self.own.load()
        self.tree.apply(self.own.joined(registry), self._clock())

    def model_alias(self, name: str) -> str | None:
        """Returns the target of a link in model/, or None."""
        inode = self.tree.aliases.find(places.MODEL, name)
        return os.fsdecode(self.tree.link(inode)) if inode else None

    def on_change(self, callback: Callable[[Key], None]) -> None:
        """Have `callback` called with each object whose controls are written, from now on."""
        self._changes.changed = callback

    async def apply(self, registry: Registry) -> None:
        """Show another registry. No user sees the older one once this returns."""
        leaving = self._changes.leaving(registry)
        stale = self.tree.apply(self.own.joined(registry), self._clock())
        self._entries.clear()
        await trio.to_thread.run_sync(self._forget, stale)
        await self._changes.drop(leaving)
        for key in filter(is_own, leaving):
            await trio.to_thread.run_sync(self.own.forgotten, key)

    async def hold(self, uid: int, reaches: Callable[[str], bool], label: str) -> None:
        """Hold the tools whose scripts a run of `label` can write, until their user has looked at them."""
        if held := await self.own.hold(uid, reaches, label):
            await self.apply(Registry({**self.tree.registry.objects, **held}))

    async def offer(self, name: str, target: str) -> None:
        """Add an alias in model/, unless there is one of that name (writes.py)."""
        if await self._changes.offer(name, os.fsencode(target)):
            await trio.to_thread.run_sync(self._forget, Stale([(places.MODEL, name)], [places.MODEL]))

    # Attributes.

    @guarded
    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        text = os.fsdecode(name)
        if self.bindings.is_expected(parent_inode, text, ctx.pid):  # bind(2) wants the name to be free
            raise FUSEError(errno_of("ENOENT"))
        if text == SOCKET_NAME:
            if not self.bindings.is_run_socket_bound:
                raise FUSEError(errno_of("ENOENT"))
            return self._entries.entry(RUN_SOCKET)
        if parent_inode == ROOT and (unlisted := UNLISTED.get(text)):
            return self._entries.entry(unlisted)
        return await self._entries.lookup(parent_inode, text, (ctx.uid, ctx.gid))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self._entries.forget(inode_list)

    @guarded
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        return await self._entries.now(inode)

    @guarded
    async def setattr(
        self, inode: int, attr: EntryAttributes, fields: SetattrFields, fh: int | None, ctx: RequestContext
    ) -> EntryAttributes:
        if inode & BIT:
            raise read_only()
        found = self._entries.attributes(inode)
        if self.own.is_file(inode) and kernel.is_of_times(fields):
            return self._entries.entry(inode)  # touch(1) sets the times of a file that it has made
        temporary, control = self.tree.temporary_at(inode), self.tree.control_at(inode)
        if temporary is None and (control is None or control[1].check is None):
            raise read_only()
        if fields.update_size:
            await self._resize(inode, attr.st_size, fh)
        if temporary:
            kernel.change_temporary(temporary, attr, fields)
        elif control:
            kernel.check_change(found, attr, fields)
            if fields.update_mtime:
                self._handles.set_mtime(control[0].key, control[1], attr.st_mtime_ns)
                await self._changes.touch(inode, *control, attr.st_mtime_ns)
        return self._entries.entry(inode)

    async def _resize(self, inode: int, size: int, fh: int | None) -> None:
        """ftruncate counts at flush as writes do; truncate(2) has no flush, so it counts now."""
        if opened := self._handles.find(fh):
            opened.truncate(size)
            return
        opened = self._changes.open(inode, 0)
        opened.truncate(size)
        await self._take_over(opened)

    @guarded
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return self.tree.link(inode)

    # Names that come and go.

    @guarded
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        expected = self.bindings.is_expected(parent_inode, os.fsdecode(name), ctx.pid)
        if not stat.S_ISSOCK(mode) or not expected:
            raise read_only()
        entry = self._entries.entry(self.bindings.take(ctx.pid))
        if parent_inode == places.BIND:  # the kernel has to ask for the name, which is free for the next one
            entry.entry_timeout = 0
        return entry

    @guarded
    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        inode = await self._changes.make_home(parent_inode, os.fsdecode(name))
        self._entries.clear()
        return self._entries.kernel_entry(inode)

    @guarded
    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        text, space = os.fsdecode(name), self._spaces.place(parent_inode)
        if space is None or self._entries.is_objects(parent_inode, text):
            raise read_only()
        await self._spaces.rmdir(space, text)

    @guarded
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        inode = await self._changes.symlink(parent_inode, os.fsdecode(name), target)
        self._entries.clear()
        return self._entries.kernel_entry(inode)

    @guarded
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        code = "EROFS" if new_parent_inode == ROOT else "EPERM"
        raise Fault(code, "nothing in the tree can have two names; make a symbolic link")

    @guarded
    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        text = os.fsdecode(name)
        if space := await self._spaces.holder(parent_inode, text):
            await self._spaces.unlink(space, text)
            return
        if self.own.at(parent_inode, text):
            await self.own.remove(parent_inode, text)
        else:
            await self._changes.unlink(parent_inode, text)
        self._entries.clear()
        await self._metadata_changed(parent_inode)

    @guarded
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise Fault("EINVAL", "files here cannot be exchanged")
        old, new = os.fsdecode(name_old), os.fsdecode(name_new)
        if await self._spaces.rename(parent_inode_old, old, parent_inode_new, new):
            return
        await self._changes.rename(parent_inode_old, old, parent_inode_new, new, replace=not flags)
        self._entries.clear()
        await self._metadata_changed(parent_inode_old)

    @guarded
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        text = os.fsdecode(name)
        if self.own.is_place(parent_inode):
            inode = await self.own.make(parent_inode, text)
            self._entries.clear()
            return FileInfo(fh=inode, keep_cache=True), self._entries.kernel_entry(inode)
        inode = await self._changes.create(parent_inode, text, (ctx.uid, ctx.gid), mode)
        self._entries.clear()
        handle = self._handles.add(self._changes.open(inode, flags | os.O_TRUNC), self.tree.home_of(inode))
        return FileInfo(fh=handle, direct_io=True), self._entries.kernel_entry(inode)

    # Open files.

    @guarded
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        steady = self.tree.is_steady(inode)  # each call begins with this open
        if flags & WRITING and (steady or inode & BIT):
            raise read_only()
        if steady:
            return FileInfo(fh=inode, keep_cache=True)
        writing = flags & WRITING or self.tree.temporary_at(inode) is not None
        opened = self._changes.open(inode, flags) if writing else await self._entries.open(inode, flags)
        paged = isinstance(opened, LogFile)
        handle = self._handles.add(opened, ctx.uid if opened.has_descriptor else self.tree.home_of(inode))
        return FileInfo(fh=handle, direct_io=not paged, keep_cache=paged, nonseekable=opened.is_stream)

    @guarded
    async def read(self, fh: int, off: int, size: int) -> bytes:
        if opened := self._handles.find(fh):
            return await opened.read(off, size)
        return self.tree.steady(fh)[off : off + size]

    @guarded
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        opened = self._handles.find(fh)
        if opened is None:  # the executable of an agent, which its creator has open for writing
            await self.own.unmake(fh)
            self._entries.clear()
            raise read_only()
        return await opened.write(off, buf)

    @guarded
    async def flush(self, fh: int) -> None:
        await self._take_over(self._handles.find(fh))

    @guarded
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._take_over(self._handles.find(fh))

    async def _take_over(self, opened: OpenFile | None) -> None:
        if isinstance(opened, ControlFile) and opened.edit.written:
            await self._changes.take_over(opened)
            if (inode := self.tree.nodes.objects.get(opened.key)) is not None:
                await self._metadata_changed(inode)

    async def _metadata_changed(self, inode: int) -> None:
        """Forget an executable, which shows some controls. A handler may wait, as no folder is involved."""
        if self.tree.owner_object(inode):
            executable = places.base(inode)
            self._entries.clear()
            await trio.to_thread.run_sync(self._forget, Stale([], [executable]))

    @guarded
    async def release(self, fh: int) -> None:
        if fh >= FIRST_HANDLE and (opened := self._handles.remove(fh)):
            await opened.close()

    # Folders.

    @guarded
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        listing = await self._entries.listing(inode, ctx.uid)
        try:
            return self._handles.add_listing(listing, ctx.uid)
        except Fault:
            self._entries.let_go(listing)
            raise

    @guarded
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        listing = self._handles.listing(fh)
        for position in range(start_id, len(listing)):
            name, inode = listing[position]
            try:
                entry = self._entries.entry(inode)
            except Fault:  # it went since the folder was opened
                continue
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, position + 1):
                return
            if name not in (".", ".."):
                self._entries.count(inode)

    async def releasedir(self, fh: int) -> None:
        self._entries.let_go(self._handles.remove_listing(fh))

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Names are on disk before a change returns."""

    @guarded
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        return kernel.room(edits.MAX_IN_TREE, ROOM)

    # Extended attributes.

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        if not name.startswith(b"user."):
            # ls asks each entry for its label and ACL; after this answer it stops, for the whole device.
            raise FUSEError(errno_of("ENOTSUP"))
        value = self._xattrs(inode).get(name)
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    @guarded
    async def listxattr(self, inode: int, ctx: RequestContext) -> list[bytes]:
        return list(self._xattrs(inode))

    def _xattrs(self, inode: int) -> dict[bytes, bytes]:
        if inode & BIT:
            return {}
        found = self._entries.attributes(inode), self.tree.owner_object(inode), self.tree.name(inode)
        return metadata.xattrs(inode, *found, self.tree.refusal(inode))

    @guarded
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        raise FUSEError(errno_of("EROFS" if name.startswith(metadata.PREFIX) else "ENOTSUP"))

    @guarded
    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        raise FUSEError(errno_of("EROFS" if name.startswith(metadata.PREFIX) else "ENOTSUP"))
