"""The new tools of MCP servers, which are noticed while the servers are served.

Main path: `Watch` keeps one call open to a host of each server. The call is answered when the server lists
other tools, and then the daemon looks again. A server that runs for a user may get more tools there by a call
of this user; `began` follows these.

Rules: for all changes in users' servers the daemon looks again once in PAUSE_SECONDS, as users could cause
any number of them. The open call to a user's host does not keep that host alive.

This file must never know the protocol, or where servers are configured.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import trio

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import KIND
from cortexfs.plugins.catalog import Catalog, describer
from cortexfs.pool.host import Host

PAUSE_SECONDS = 1.0
LOOK_SECONDS = 0.5  # between looks for the end of a host's first call, whose umask its server gets
RETRY_SECONDS = (1.0, 5.0, 15.0, 60.0)  # by the number of failures in a row

log = logging.getLogger("cortexfs")


class Watch:
    """Follows the tools of servers while they are served."""

    def __init__(self, catalog: Catalog, changed: Callable[[], Awaitable[None]]) -> None:
        self._catalog = catalog
        self._changed = changed
        self._scopes: dict[hostcalls.Plugin, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._again = trio.Event()
        self._besides = trio.Event()  # set when users have other tools

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await self._besides.wait()
                self._besides = trio.Event()
                await self._changed()
                await trio.sleep(PAUSE_SECONDS)

    def began(self, host: Host) -> None:
        """Follow a host that has started, if it is a user's host of a server."""
        user = host.identity
        is_own = not user.label and user.view is None and not user.is_elsewhere and user != describer()
        if host.plugin.kind == KIND and is_own and self._nursery is not None:
            self._nursery.start_soon(self._follow_besides, host)

    async def _follow_besides(self, host: Host) -> None:
        while host.calls and not host.exited.is_set():  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)
        mark = await self._catalog.besides(host, "")
        while mark:
            self._besides.set()
            await trio.sleep(PAUSE_SECONDS)
            mark = await self._catalog.besides(host, mark)
        self._besides.set()

    def reconcile(self, plugins: Iterable[hostcalls.Plugin]) -> None:
        """Watch these servers, and no others."""
        assert self._nursery is not None
        servers = {plugin for plugin in plugins if plugin.kind == KIND}
        for plugin in [*self._scopes]:
            if plugin not in servers:
                self._scopes.pop(plugin).cancel()
        for plugin in servers - self._scopes.keys():
            self._scopes[plugin] = trio.CancelScope()
            self._nursery.start_soon(self._follow, plugin, self._scopes[plugin])

    def again(self) -> None:
        """Ask at once each server that could not be asked before, as its fault may be mended."""
        self._again.set()
        self._again = trio.Event()

    async def _follow(self, plugin: hostcalls.Plugin, scope: trio.CancelScope) -> None:
        with scope:
            mark, failures = "", 0
            while True:
                began = trio.current_time()
                try:
                    mark, is_new = await self._catalog.follow(plugin, mark)
                    failures = 0
                    if is_new:
                        await self._changed()
                except Fault as fault:
                    self._catalog.note(plugin, fault.message)
                    if trio.current_time() - began >= RETRY_SECONDS[-1]:  # it worked for so long
                        failures = 0
                    if not failures:
                        log.warning(
                            "%s: %s (it is tried again, with longer pauses)", plugin.name, fault.message
                        )
                    with trio.move_on_after(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]):
                        await self._again.wait()
                    failures += 1
