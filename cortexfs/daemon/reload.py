"""The installed and configured objects, as the tree shows them: read at the start, at SIGHUP, and when a
plugin has other tools.

Main path: `again` reads everything (`Sources`) and has each part take over its share; `check_agents` looks at
agents whose controls were written.

Rules: one at a time. What did not change keeps its hosts. A damaged file must not end what works.
This file must never know how a part does its share.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import trio

from cortexfs.agents import records
from cortexfs.config import Config
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Key, Object, Registry, is_own
from cortexfs.daemon.agent_ports import AgentWorld
from cortexfs.hooks.middleware import Middleware
from cortexfs.models.drivers import Drivers
from cortexfs.models.exchange.sources import served
from cortexfs.models.local.driver import Locals
from cortexfs.models.local.weights import DEFAULT, found
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.secrets import Secrets
from cortexfs.plugins import mcp_servers
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.command_file import Commands
from cortexfs.plugins.enabled import Offers
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import Runs
from cortexfs.talk.listener import Sockets
from cortexfs.tree.fuse import Filesystem


class Sources(NamedTuple):
    """The sources that are read; each raises the Fault of a damaged file."""

    config: Config
    began: float  # the daemon, by the clock
    offers: Offers
    servers: mcp_servers.Servers
    providers: Providers
    secrets: Secrets


class ReloadParts(NamedTuple):
    """The parts that take over what was read."""

    runs: Runs
    pool: Pool
    catalog: Catalog
    commands: Commands
    drivers: Drivers
    locals: Locals
    world: AgentWorld
    middleware: Middleware
    fs: Filesystem
    sockets: Sockets
    watch: mcp_servers.Watch


class Reload:
    def __init__(self, root: Path, sources: Sources, parts: ReloadParts) -> None:
        self._root = root
        self._sources = sources
        self._parts = parts
        self._applying = trio.Lock()
        self.begun = self.count = -1  # the first one is the start
        self.refused = ""  # why the last one took nothing over
        self.broken_providers: dict[str, str] = {}
        self.broken_agents: dict[str, str] = {}
        self._agents: list[Object] = []  # as their records have them
        self._agents_changed = trio.Event()
        self._own_changed: set[Key] = set()
        parts.fs.on_change(self._changed)

    @property
    def broken_plugins(self) -> dict[str, str]:
        return self._parts.catalog.broken

    async def begin(self) -> None:
        """The first time."""
        await trio.to_thread.run_sync(self._sources.offers.settle)
        await self.again()

    async def again(self) -> None:
        """Take over what is enabled now."""
        async with self._applying:
            self.begun += 1
            await self._take_over()
            self.count = self.begun
            self._parts.watch.again()

    async def renew(self) -> None:
        """A plugin has other tools, without anybody's having told us."""
        async with self._applying:
            await self._take_over()

    async def _take_over(self) -> None:
        parts, sources, self.refused = self._parts, self._sources, ""
        run, config = trio.to_thread.run_sync, sources.config
        try:
            offered = await run(sources.offers.load)
            servers = await run(sources.servers.load)
            models = await run(served, sources.providers, sources.secrets)
            agents = await run(records.load, config.state, sources.began)
            local = await run(found, config.directory, config.engine.context_tokens)
        except Fault as fault:
            parts.runs.last_error = self.refused = fault.message
            return
        parts.locals.apply(local)
        registry = await parts.catalog.registry(
            [*offered.plugins, *servers.plugins],
            [*models.objects, *(each.object for each in local), *agents.objects],
            consents=offered.consents,
            faults={**offered.faults, **servers.faults},
            withdrawn=offered.withdrawn,
        )
        self.broken_providers, self.broken_agents = models.broken, agents.broken
        self._agents = agents.objects
        await parts.drivers.apply(models.sources)
        await run(parts.commands.apply, parts.catalog.commands, parts.catalog.plugins)
        await parts.fs.apply(registry)
        main = DEFAULT if registry.get("model", DEFAULT) else "debug/echo"
        await parts.fs.offer("main", f"{self._root}/model/{main}")
        await self._replace_hosts(registry)
        await self._check(None)
        await parts.sockets.reconcile(parts.fs.tree.registry)
        parts.watch.reconcile(servers.plugins)

    async def _replace_hosts(self, registry: Registry) -> None:
        """Of plugins that are no more, or are others now."""
        catalog, pool, hooks = self._parts.catalog, self._parts.pool, self._parts.middleware.hooks
        hooks.apply(catalog.served)
        wanted = {one.plugin for one in (*registry, *catalog.commands.values())} | {*hooks.plugins}
        pool.replace(lambda plugin: plugin in wanted)
        await trio.to_thread.run_sync(self._sources.offers.sweep, wanted | pool.plugins)

    # -- agents

    def _changed(self, key: Key) -> None:
        """Somebody has written a control."""
        if key[0] == "agent":
            self._agents_changed.set()
        if is_own(key):
            self._own_changed.add(key)

    async def check_agents(self) -> None:
        """An agent whose controls do not fit together is refused on its socket, until they do. For ever."""
        while True:
            await self._agents_changed.wait()
            self._agents_changed = trio.Event()
            async with self._applying:
                changed, self._own_changed = self._own_changed, set()
                if await self._check(changed) or changed:
                    await self._parts.sockets.reconcile(self._parts.fs.tree.registry)

    async def _check(self, own: Iterable[Key] | None) -> bool:
        """Show which agents cannot work now, these of users' own among them (None: all). Returns whether that
        is another thing than before."""
        fs = self._parts.fs
        shown = fs.tree.registry.objects
        checked = self._parts.world.checked([*self._agents, *fs.own.some(own)])
        changed = any(shown.get(key) != object_ for key, object_ in checked.items())
        if changed:
            await fs.apply(Registry({**shown, **checked}))
        return changed
