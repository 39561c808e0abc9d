"""The installed and configured objects, as the tree shows them: read at the start, at SIGHUP, and when a
plugin has other tools.

Main path: `again` reads everything and passes each part of the daemon its share; `check_agents` checks the
agents whose controls were written.

Rules: one reload at a time. An unchanged plugin keeps its hosts. A damaged file must not end what works.
This file must never know how a part uses its share.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from cortexfs.agents import records
from cortexfs.core import hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.registry import Key, Object, Registry, is_own
from cortexfs.models.exchange.sources import served
from cortexfs.models.local.weights import DEFAULT, found
from cortexfs.pool.call import ask
from cortexfs.pool.host import Host

log = logging.getLogger("cortexfs")

RESET_SECONDS = 10.0  # in which a host has to apply new settings, with its hooks for each

if TYPE_CHECKING:
    from cortexfs.daemon.daemon import Daemon


class Reload:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._applying = trio.Lock()
        self.begun = self.count = -1  # the first reload is the start
        self.refused = ""  # why the last reload changed nothing
        self.broken_providers: dict[str, str] = {}
        self.broken_agents: dict[str, str] = {}
        self._agents: list[Object] = []  # as their records have them
        self._agents_changed = trio.Event()
        self._own_changed: set[Key] = set()
        daemon.fs.on_change(self._changed)

    async def begin(self) -> None:
        """Load everything for the first time."""
        await trio.to_thread.run_sync(self._daemon.offers.settle)
        await self.again()

    async def again(self) -> None:
        """Load what is enabled and configured now."""
        async with self._applying:
            self.begun += 1
            await self._take_over()
            self.count = self.begun
            self._daemon.watch.again()
            self._daemon.logins.again()
            self._daemon.team.again()

    async def renew(self) -> None:
        """Load everything after a plugin's tools have changed by themselves."""
        async with self._applying:
            await self._take_over()

    async def _take_over(self) -> None:
        daemon, self.refused = self._daemon, ""
        run, config = trio.to_thread.run_sync, daemon.config
        try:
            offered = await run(daemon.offers.load)
            servers = await run(daemon.servers.load)
            models = await run(served, daemon.providers, daemon.secrets)
            agents = await run(records.load, config.state, daemon.began)
            local = await run(found, config.directory, config.engine.context_tokens)
        except Fault as fault:  # a file is damaged
            daemon.runs.last_error = self.refused = fault.message
            return
        daemon.locals.apply(local)
        registry = await daemon.catalog.registry(
            [*offered.plugins, *servers.plugins],
            [*models.objects, *(each.object for each in local), *agents.objects],
            consents=offered.consents,
            faults={**offered.faults, **servers.faults},
            withdrawn=offered.withdrawn,
        )
        self.broken_providers, self.broken_agents = models.broken, agents.broken
        self._agents = agents.objects
        await daemon.drivers.apply(models.sources)
        daemon.texts.apply(offered.texts)
        await run(daemon.commands.apply, daemon.catalog.commands, daemon.catalog.plugins)
        await self._reset_hosts()
        await self._apply(registry.objects)
        main = DEFAULT if registry.get("model", DEFAULT) else "debug/echo"
        await daemon.fs.offer("main", f"{daemon.root}/model/{main}")
        await self._replace_hosts()
        await self._check(None)
        await daemon.sockets.reconcile(daemon.fs.tree.registry)
        daemon.watch.reconcile(servers.plugins)

    async def _apply(self, objects: Mapping[Key, Object]) -> None:
        """Show these objects. Users' own models and other machines' objects among them are replaced by the
        current ones."""
        own = await trio.to_thread.run_sync(self._daemon.own.load)
        self._daemon.drivers.own = own.sources
        others = {key: object_ for key, object_ in objects.items() if key[0] != "model" or not is_own(key)}
        await self._daemon.fs.apply(Registry(self._daemon.team.joined(others | own.objects)))

    async def show_own(self) -> None:
        """Show a user's own models, or another machine's objects, after they have changed."""
        async with self._applying:
            await self._apply(self._daemon.fs.tree.registry.objects)
            await self._check(None)
            await self._daemon.sockets.reconcile(self._daemon.fs.tree.registry)

    async def _reset_hosts(self) -> None:
        """Send running modules their new settings. A module that does not apply them is started again."""
        daemon = self._daemon
        served = {plugin.name: plugin for plugin in daemon.catalog.served}
        renewed = {
            old: served[old.name]
            for old in daemon.pool.plugins
            if old.name in served and targets.differ_by_settings(old, served[old.name])
        }
        async with trio.open_nursery() as nursery:
            for host in daemon.pool.renew(renewed):
                nursery.start_soon(self._reset, host)

    async def _reset(self, host: Host) -> None:
        pool, is_reset = self._daemon.pool, False
        host.calls += 1
        try:
            with trio.move_on_after(0 if host.is_stopped else RESET_SECONDS):
                is_reset = await ask(host, hostcalls.Reset(host.plugin.target), wire.DONE) is not None
        except (Fault, OSError) as problem:
            log.info("the host of %s restarts for uid %d: %s", host.plugin.name, host.identity.uid, problem)
        if not is_reset:
            pool.retire(host)
        pool.release(host)

    async def _replace_hosts(self) -> None:
        """End hosts of plugins that are gone or have changed."""
        daemon, hooks = self._daemon, self._daemon.middleware.hooks
        hooks.apply(daemon.catalog.served)
        registry = daemon.fs.tree.registry  # with users' own objects
        plugins = {each.plugin for each in (*registry, *daemon.catalog.commands.values())} | {*hooks.plugins}
        plugins |= daemon.catalog.starting
        daemon.pool.replace(lambda plugin: plugin in plugins)
        await trio.to_thread.run_sync(daemon.offers.sweep, plugins | daemon.pool.plugins)

    # -- agents

    def _changed(self, key: Key) -> None:
        """Note that a control was written."""
        if key[0] == "agent" or is_own(key):
            self._agents_changed.set()
        if is_own(key):
            self._own_changed.add(key)

    async def check_agents(self) -> None:
        """Runs for ever. An agent is refused on its socket while its controls do not fit together."""
        while True:
            await self._agents_changed.wait()
            self._agents_changed = trio.Event()
            async with self._applying:
                changed, self._own_changed = self._own_changed, set()
                try:
                    await self._daemon.world.hold_again(changed)
                except Fault as fault:  # on a full disk a script cannot be held, and is no tool yet
                    self._daemon.runs.last_error = fault.message
                    changed = {key for key in changed if key[0] != "tool"}
                if await self._check(changed) or changed:
                    await self._daemon.sockets.reconcile(self._daemon.fs.tree.registry)

    async def _check(self, own: Iterable[Key] | None) -> bool:
        """Show which agents cannot work now, among them these of users' own (None: all). Returns True if that
        has changed."""
        fs = self._daemon.fs
        objects = fs.tree.registry.objects
        checked = self._daemon.world.checked([*self._agents, *fs.own.some(own)])
        changed = any(objects.get(key) != object_ for key, object_ in checked.items())
        if changed:
            await fs.apply(Registry({**objects, **checked}))
        return changed
