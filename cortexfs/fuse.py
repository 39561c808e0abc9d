"""The tree as a mount: inodes and handles in, attributes, bytes and FUSEErrors out.

Rules: an adapter and nothing else; what the tree looks like is core/tree.py, what people change in
it changes.py. One guard, `guarded`, stands around every handler, as any exception but FUSEError
ends the mount for everyone. Nothing here waits for a path inside the mount, and the kernel is told
to forget in a thread only (a notification waits for handlers that hold the same folder).
Inode numbers and what the kernel keeps are decided in core/places.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

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

from cortexfs import attributes
from cortexfs.changes import Changes, read_only
from cortexfs.core import controls, places, temporaries, xattrs
from cortexfs.core.errors import Fault, errno_of
from cortexfs.core.places import HOME, RUN_SOCKET, STATUS, Attributes, Keep
from cortexfs.core.registry import Object, Registry
from cortexfs.core.tree import Stale, Tree
from cortexfs.core.wire import SOCKET_NAME
from cortexfs.opened import ControlFile, LogFile, LogSource, Opened, Snapshot, TemporaryFile
from cortexfs.store import Store

P = ParamSpec("P")
T = TypeVar("T")

STATUS_SECONDS = 1_000_000_000  # nanoseconds that one rendering of a generated file serves (abi.md 1)
FIRST_HANDLE = 1 << 62  # above all inodes: an executable's handle is its inode
WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
BLOCK = 4096
ROOM = temporaries.MAX_IN_TREE * temporaries.MAX_SIZE  # what df shows: all that may be written here

log = logging.getLogger("cortexfs.fuse")

Handler = Callable[Concatenate["Filesystem", P], Awaitable[T]]


def guarded(handler: Handler[P, T]) -> Callable[Concatenate[Filesystem, P], Coroutine[Any, Any, T]]:
    """The one guard: a Fault becomes its errno, a bug becomes EIO and a line in the log."""

    @functools.wraps(handler)
    async def guard(self: Filesystem, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(self, *args, **kwargs)
        except FUSEError:
            raise
        except Fault as fault:
            raise FUSEError(fault.errno) from None
        except Exception:
            self.errors += 1
            log.exception("%s failed; please report this", handler.__name__)
            if self._strict:
                raise
            raise FUSEError(errno_of("EIO")) from None

    return guard


def forget(stale: Stale) -> None:
    """Make the kernel forget; blocks, and must not run on the trio thread."""
    for folder, name in stale.entries:
        with contextlib.suppress(OSError):  # ENOENT: it did not know; ENODEV: the mount has gone
            pyfuse3.invalidate_entry(folder, name.encode())
    for inode in stale.inodes:
        with contextlib.suppress(OSError):
            pyfuse3.invalidate_inode(inode)


class Filesystem(pyfuse3.Operations):
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        logs: LogSource,
        status: Callable[[], str],
        shebang: bytes,
        bin_targets: Mapping[str, str],
        owner: tuple[int, int] | None = None,
        tool_timeout: float = 1800.0,
        strict: bool = False,
        clock: Callable[[], int] = time.time_ns,
        forget: Callable[[Stale], None] = forget,
    ) -> None:
        super().__init__()
        self.errors = 0
        self._strict = strict
        self._clock = clock
        self._logs = logs
        self._render_status = status
        self._status: tuple[int, bytes] | None = None
        self._forget = forget
        self._tree = Tree(
            owner=owner or (os.getuid(), os.getgid()),
            shebang=shebang,
            programs=bin_targets,
            tool_timeout=tool_timeout,
            now=clock(),
        )
        self._changes = Changes(self._tree, store, clock)
        self._changes.load()
        self._tree.home(*self._tree.owner, clock())
        self._tree.apply(registry, clock())
        self._binder: int | None = None
        self._bound = False
        self._missing = attributes.missing()
        self._kept: dict[int, EntryAttributes] = {}
        self._opened: dict[int, Opened] = {}
        self._listings: dict[int, list[tuple[str, int]]] = {}
        self._last_handle = FIRST_HANDLE
        self._lookups: dict[int, int] = {}  # of temporary files, which go when nobody knows them
        self.object_of: Callable[[int], Object | None] = self._tree.object_at

    # For the daemon.

    @property
    def registry(self) -> Registry:
        return self._tree.registry

    def control(self, object_: Object, name: str) -> str:
        """The value of a control that counts for the next run."""
        return self._tree.control(object_, name)

    async def apply(self, registry: Registry) -> None:
        """Show another registry; nobody sees the older one once this returns."""
        stale = self._tree.apply(registry, self._clock())
        self._kept.clear()
        await trio.to_thread.run_sync(self._forget, stale)

    @contextlib.contextmanager
    def expecting_bind(self) -> Iterator[None]:
        """Let the calling thread, once and nobody else, bind `.run.sock` in the root."""
        self._binder = threading.get_native_id()
        try:
            yield
        finally:
            self._binder = None

    # Attributes.

    def _attributes(self, inode: int) -> Attributes:
        found = self._tree.attributes(inode)
        if found is None:
            raise Fault("ENOENT", "it was removed")
        if inode == STATUS:
            rendered, text = self._status_now()
            return found._replace(size=len(text), mtime=rendered)
        if found.keep is Keep.ENTRY and (object_ := self._tree.owner_object(inode)):
            size, mtime = self._logs.size(*object_.key), int(self._logs.mtime(*object_.key) * 1e9)
            return found._replace(size=size, mtime=mtime or found.mtime)
        return found

    def _entry(self, inode: int) -> EntryAttributes:
        kept = self._kept.get(inode)
        if kept is not None:
            return kept
        found = self._attributes(inode)
        entry = attributes.entry(inode, found)
        if found.keep is Keep.ALWAYS and places.slot(inode) < places.CONTROL:
            self._kept[inode] = entry
        return entry

    def _seen(self, inode: int) -> EntryAttributes:
        """An entry for the kernel, which counts it as a lookup."""
        if self._tree.temporary_at(inode):
            self._lookups[inode] = self._lookups.get(inode, 0) + 1
        return self._entry(inode)

    def _status_now(self) -> tuple[int, bytes]:
        now = self._clock()
        if self._status is None or not 0 <= now - self._status[0] < STATUS_SECONDS:
            self._status = (now, self._render_status().encode())
        return self._status

    @guarded
    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        text = os.fsdecode(name)
        if text == SOCKET_NAME:
            if not self._bound:
                raise FUSEError(errno_of("ENOENT"))
            return self._entry(RUN_SOCKET)
        found = self._tree.lookup(parent_inode, text)
        if found is None and parent_inode == HOME:
            found = self._own_home(text, ctx)
        return self._seen(found) if found else self._missing

    def _own_home(self, name: str, ctx: RequestContext) -> int:
        """A user who looks for his home has one; for others that is no answer to remember."""
        if name != str(ctx.uid):
            raise FUSEError(errno_of("ENOENT"))
        return self._tree.home(ctx.uid, ctx.gid, self._clock())

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, count in inode_list:
            if inode in self._lookups:
                self._lookups[inode] -= count
                self._drop(inode)

    def _drop(self, inode: int) -> None:
        temporary = self._tree.temporary_at(inode)
        if temporary and not temporary.linked and self._lookups[inode] <= 0:
            del self._lookups[inode]
            self._tree.drop_node(temporary)

    @guarded
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        return self._entry(inode)

    @guarded
    async def setattr(
        self, inode: int, attr: EntryAttributes, fields: SetattrFields, fh: int | None, ctx: RequestContext
    ) -> EntryAttributes:
        found = self._attributes(inode)
        temporary, control = self._tree.temporary_at(inode), self._tree.control_at(inode)
        if temporary is None and (control is None or control[1].check is None):
            raise read_only()
        if fields.update_size:
            await self._resize(inode, attr.st_size, fh)
        if temporary:
            attributes.change_temporary(temporary, attr, fields)
        elif control:
            attributes.check_change(found, attr, fields)
            if fields.update_mtime:
                await self._changes.touch(inode, *control, attr.st_mtime_ns)
        return self._entry(inode)

    async def _resize(self, inode: int, size: int, fh: int | None) -> None:
        """ftruncate counts at flush as writes do; truncate(2) has no flush, so it counts now."""
        opened = self._opened.get(fh) if fh else None
        if opened is not None:
            opened.truncate(size)
            return
        opened = self._open_for_writing(inode, 0)
        opened.truncate(size)
        await self._take_over(opened)

    @guarded
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return self._tree.link(inode)

    # Names that come and go.

    @guarded
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        expected = stat.S_ISSOCK(mode) and os.fsdecode(name) == SOCKET_NAME and parent_inode == places.ROOT
        if not expected or self._bound or self._binder is None or ctx.pid != self._binder:
            raise read_only()
        self._bound = True
        return self._entry(RUN_SOCKET)

    @guarded
    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        inode = await self._changes.make_home(parent_inode, os.fsdecode(name))
        self._kept.clear()
        return self._seen(inode)

    @guarded
    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        raise read_only()

    @guarded
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        inode = await self._changes.symlink(parent_inode, os.fsdecode(name), target)
        self._kept.clear()
        return self._seen(inode)

    @guarded
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        raise Fault("EPERM", "nothing in the tree can have two names; make a symbolic link")

    @guarded
    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        await self._changes.unlink(parent_inode, os.fsdecode(name))
        self._kept.clear()

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
        await self._changes.rename(parent_inode_old, old, parent_inode_new, new, replace=not flags)
        self._kept.clear()

    @guarded
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        inode = await self._changes.create(parent_inode, os.fsdecode(name), (ctx.uid, ctx.gid), mode)
        self._kept.clear()
        opened = self._open_for_writing(inode, flags | os.O_TRUNC)
        return FileInfo(fh=self._handle(opened), direct_io=True, keep_cache=False), self._seen(inode)

    # Open files.

    @guarded
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        if self._tree.object_at(inode) is not None:  # each call begins with this open
            if flags & WRITING:
                raise FUSEError(errno_of("EROFS"))
            return FileInfo(fh=inode, keep_cache=True)
        writing = flags & WRITING or self._tree.temporary_at(inode) is not None
        opened = self._open_for_writing(inode, flags) if writing else self._open_for_reading(inode)
        return FileInfo(fh=self._handle(opened), direct_io=not isinstance(opened, LogFile), keep_cache=True)

    def _open_for_reading(self, inode: int) -> Opened:
        if inode == STATUS:
            return Snapshot(self._status_now()[1])
        found = self._tree.control_at(inode)
        if found is None:
            raise Fault("ENOENT", "it was removed")
        object_, control = found
        if control.name == controls.LOG:
            return LogFile(self._logs, object_.key)
        return Snapshot(self._tree.value(object_, control))

    def _open_for_writing(self, inode: int, flags: int) -> Opened:
        appending = bool(flags & os.O_APPEND)
        if temporary := self._tree.temporary_at(inode):
            if flags & os.O_TRUNC:
                temporary.truncate(0, self._clock())
            return TemporaryFile(temporary, self._clock, appending=appending)
        found = self._tree.control_at(inode)
        if found is None or found[1].check is None:
            raise read_only()
        return self._changes.edit(*found, truncated=bool(flags & os.O_TRUNC), appending=appending)

    def _handle(self, opened: Opened) -> int:
        self._last_handle += 1
        self._opened[self._last_handle] = opened
        return self._last_handle

    @guarded
    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh < FIRST_HANDLE:
            object_ = self._tree.object_at(fh)
            return self._tree.executable(object_)[off : off + size] if object_ else b""
        return self._opened[fh].read(off, size)

    @guarded
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if fh < FIRST_HANDLE:
            raise read_only()
        return self._opened[fh].write(off, buf)

    @guarded
    async def flush(self, fh: int) -> None:
        if fh >= FIRST_HANDLE:
            await self._take_over(self._opened[fh])

    @guarded
    async def fsync(self, fh: int, datasync: bool) -> None:
        if fh >= FIRST_HANDLE:
            await self._take_over(self._opened[fh])

    async def _take_over(self, opened: Opened) -> None:
        if not isinstance(opened, ControlFile) or not await self._changes.take_over(opened):
            return
        executable = self._tree.executable_inode(opened.key)
        self._kept.pop(executable, None)
        # Its metadata shows some controls. No folder is involved, so this may wait in a handler.
        await trio.to_thread.run_sync(self._forget, Stale([], [executable]))

    async def release(self, fh: int) -> None:
        if fh >= FIRST_HANDLE:
            self._opened.pop(fh, None)

    # Folders.

    @guarded
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        self._last_handle += 1
        self._listings[self._last_handle] = self._tree.listing(inode)
        return self._last_handle

    @guarded
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        listing = self._listings[fh]
        for position in range(start_id, len(listing)):
            name, inode = listing[position]
            try:
                entry = self._entry(inode)
            except Fault:  # it went since the folder was opened
                continue
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, position + 1):
                return
            if inode in self._lookups:
                self._lookups[inode] += 1

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Names are on disk before a change returns."""

    @guarded
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        found = StatvfsData()
        found.f_bsize = found.f_frsize = BLOCK
        found.f_blocks = found.f_bfree = found.f_bavail = ROOM // BLOCK
        found.f_files = found.f_ffree = found.f_favail = temporaries.MAX_IN_TREE
        found.f_namemax = 255
        return found

    # Extended attributes.

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        if not name.startswith(b"user."):
            # ls asks each entry for its label and ACL, and stops for a whole device at this answer.
            raise FUSEError(errno_of("ENOTSUP"))
        value = self._xattrs(inode).get(name)
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    @guarded
    async def listxattr(self, inode: int, ctx: RequestContext) -> list[bytes]:
        return list(self._xattrs(inode))

    def _xattrs(self, inode: int) -> dict[bytes, bytes]:
        return xattrs.of(
            inode, self._attributes(inode), self._tree.owner_object(inode), self._tree.name(inode)
        )

    @guarded
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        raise FUSEError(errno_of("EROFS" if name.startswith(xattrs.PREFIX) else "ENOTSUP"))

    @guarded
    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        raise FUSEError(errno_of("EROFS" if name.startswith(xattrs.PREFIX) else "ENOTSUP"))
