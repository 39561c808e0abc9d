"""The daemon: read this file first.

`run` makes the parts and joins them, in the order in which they need each other:

    hosts.Pool      the fork server, started before anything is open that hosts must not inherit
    store, logs     what outlives the daemon
    fuse            the tree under the mount point (core/tree.py says what it looks like)
    catalog         asks the plugins for their tools; the registry is swapped in whole
    exec            `.run.sock`: a runner connects, a Relay copies between it and a host

One nursery holds every task. Stopping: no new runs, a short grace, cancel, then sockets, hosts and
mount, in that order (a bound socket pins the mount).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pyfuse3
import trio

from cortexfs import shebang, strangers
from cortexfs.catalog import Catalog
from cortexfs.config import Config, broken_plugins, enabled_plugins
from cortexfs.core import calls, wire
from cortexfs.core.errors import EXIT_OK, Fault, exit_status
from cortexfs.core.plain import one_line
from cortexfs.core.registry import Registry
from cortexfs.exec import Exec
from cortexfs.fuse import Filesystem
from cortexfs.hosts import Pool
from cortexfs.logs import Logs
from cortexfs.runs import Runs
from cortexfs.store import Store
from cortexfs.version import VERSION

GRACE_SECONDS = 0.5
SWEEP_SECONDS = 15.0
BACKLOG = 512
GC_THRESHOLDS = (20_000, 20, 20)  # measured: 6 % less CPU a call than with the defaults

log = logging.getLogger("cortexfs")


def run(root: Path, config: Config, ready: Callable[[str | None], None], strict: bool = False) -> int:
    """Serve `root` until it is unmounted or the daemon is told to stop; an exit status."""
    try:
        with _locked(config.state):
            daemon = Daemon(root, config, strict)
            return daemon.serve(ready)
    except Fault as fault:
        ready(fault.message)
        return exit_status(fault.code)


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Two daemons must not share a state: sessions and logs have one writer."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(state / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = f"{state} is in use by the daemon with pid {file.read().strip()}"
            mend = "end that one with ctx umount, or name another directory with --state"
            raise Fault("EBUSY", f"{holder}; {mend}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class Daemon:
    """The parts, and how they begin and end."""

    def __init__(self, root: Path, config: Config, strict: bool) -> None:
        self.root = root
        self.config = config
        self.began = time.time()
        self._strict = strict
        runner = shebang.runner()
        limits = config.limits
        self.pool = Pool(calls.Limits(limits.memory_mib << 20, limits.processes, limits.open_files))
        self.logs = Logs(config.state / "log", limits.log_kib << 10)
        self.runs = Runs(self.logs, limits.calls_per_user)
        self.catalog = Catalog(self.pool)
        self.fs = Filesystem(
            registry=Registry({}),
            store=Store(config.state / "tree"),
            logs=self.logs,
            status=self.status,
            shebang=shebang.line(runner),
            bin_targets={"ctx": shebang.program("ctx"), "cortexfs-object-runner": runner},
            tool_timeout=float(config.turn.tool_timeout_secs),
            strict=strict,
        )
        self._reloads = -1  # the first one is the start
        self._stop = trio.Event()

    def serve(self, ready: Callable[[str | None], None]) -> int:
        options = {*pyfuse3.default_options, "fsname=cortexfs", "subtype=cortexfs"}
        if os.geteuid() == 0:
            options.add("allow_other")
        try:
            pyfuse3.init(self.fs, str(self.root), options)
        except RuntimeError as error:
            self.pool.stop()
            raise Fault("EHOSTDOWN", f"{self.root} cannot be mounted: {error}; see: ctx doctor") from None
        try:
            # What is there now stays; a call makes a few hundred objects, and cycles among them are rare.
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            trio.run(self._main, ready, strict_exception_groups=True)
        finally:
            self.logs.flush()
            self.pool.stop()
            pyfuse3.close(unmount=True)
        return EXIT_OK

    async def _main(self, ready: Callable[[str | None], None]) -> None:
        async with trio.open_nursery() as services:
            services.start_soon(self._fuse)
            services.start_soon(self.pool.run)
            services.start_soon(self.logs.run)
            services.start_soon(self._sweep)
            await services.start(self._signals)
            services.start_soon(self._unmounted)
            await self.reload()
            listener = await trio.to_thread.run_sync(self._bind)
            with strangers.closing(listener):
                async with trio.open_nursery() as calls_:
                    exec_ = Exec(
                        self.fs.object_of, self.pool, self.runs, _Settings(self.config), self._strict
                    )
                    calls_.start_soon(exec_.serve, listener, calls_)
                    ready(None)
                    await self._stop.wait()
                    await self._drain()
                    calls_.cancel_scope.cancel()
            services.cancel_scope.cancel()

    async def _fuse(self) -> None:
        """Serve the kernel; it returns when somebody has unmounted us."""
        await pyfuse3.main()
        self._stop.set()

    def _bind(self) -> socket.socket:
        """Bind `.run.sock` through the mount: in a thread, as the trio thread must answer the MKNOD."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            with self.fs.expecting_bind():
                listener.bind(f"/proc/self/fd/{directory}/{wire.SOCKET_NAME}")
        finally:
            os.close(directory)
        strangers.refuse_rights(listener)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    async def reload(self) -> None:
        """Take over what is enabled now; what did not change keeps its hosts."""
        try:
            plugins = enabled_plugins(self.config)
        except Fault as fault:  # a damaged file must not end what works
            self.runs.last_error = fault.message
            return
        registry = await self.catalog.registry(plugins)
        self.catalog.broken |= broken_plugins(self.config)
        await self.fs.apply(registry)
        wanted = {object_.plugin for object_ in registry.objects.values()}
        self.pool.replace(lambda plugin: plugin in wanted)
        self._reloads += 1

    async def _signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number != signal.SIGHUP:
                    self._stop.set()
                    return
                await self.reload()

    async def _unmounted(self) -> None:
        """`umount -l` by hand ends the daemon too; the bound socket would keep the mount alive unseen."""
        with _mounts() as table, select.epoll() as changes:
            changes.register(table, select.EPOLLERR | select.EPOLLPRI)
            while self._is_mounted(table.read()):
                await trio.lowlevel.wait_readable(changes.fileno())
                changes.poll(0)
                table.seek(0)
        self._stop.set()

    def _is_mounted(self, table: bytes) -> bool:
        point = _escaped(self.root)
        return any(b"fuse.cortexfs" in line and line.split()[4] == point for line in table.splitlines())

    async def _drain(self) -> None:
        """No new runs; active ones get a moment to end by themselves."""
        with trio.move_on_after(GRACE_SECONDS):
            await self.runs.drained()

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self.pool.sweep(self.config.limits.idle_secs)

    def status(self) -> str:
        counts = {class_: len(self.fs.registry.names(class_)) for class_ in ("tool", "model", "agent")}
        lines = [
            f"version: {VERSION}",
            f"uptime: {time.time() - self.began:.0f} s",
            f"pid: {os.getpid()}",
            f"mount: {self.root}",
            *(f"{class_}s: {count}" for class_, count in counts.items()),
            f"runs: {len(self.runs.active)} active, {self.runs.total} total",
            f"hosts: {len(self.pool)}",
            f"reloads: {self._reloads}",
            *(f"broken plugin: {name}: {one_line(why)}" for name, why in sorted(self.catalog.broken.items())),
            f"bugs met: {self.fs.errors}",
            f"last error: {one_line(self.logs.error or self.runs.last_error or 'none')}",
        ]
        return "\n".join(lines) + "\n"


def _mounts() -> BinaryIO:
    return cast(BinaryIO, open("/proc/self/mountinfo", "rb", buffering=0))


def _escaped(path: Path) -> bytes:
    """A path as mountinfo writes it (proc(5): space, tab, newline and backslash in octal)."""
    return re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))


class _Settings:
    """The configuration, as exec wants it."""

    def __init__(self, config: Config) -> None:
        self.tool_timeout = float(config.turn.tool_timeout_secs)
        self.output_bytes = config.limits.output_gib << 30
        self.connections = config.limits.connections
        self.depth = config.limits.depth
