"""The objects of the mount: each plugin's host describes its plugin, and a Registry is made of that.

Rules: plugin code runs in a host, never here, and under root as the user nobody. A plugin's description is
untrusted input: it is bounded and checked before it becomes an object. A plugin that cannot be described is
a sentence in `broken`, and everything else works. A version of it that was served before goes on, and its
origin tells that. Plugins have tools, models and commands: all of a plugin are in the tree, or none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.config import REPLACE, Consent
from cortexfs.core import hostcalls, names, wire
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, shown, why_unread
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.mcp_server import KIND as FOLLOWED
from cortexfs.core.manifest.mcp_server import PREFIX, STARTING
from cortexfs.core.registry import Key, Object, Registry
from cortexfs.core.safe_text import one_line
from cortexfs.models import debug
from cortexfs.plugins import described
from cortexfs.plugins.described import MAX_WHY
from cortexfs.plugins.description_cache import Descriptions, own_mark
from cortexfs.pool.call import ask, ended
from cortexfs.pool.host import Host
from cortexfs.pool.pool import Pool
from cortexfs.version import VERSION

BUILTIN = hostcalls.Plugin(
    "builtin", VERSION, "python", "cortexfs.tools:plugin", files=own_mark(), trusted=True
)
DESCRIBE_SECONDS = 15.0
OWN_TRIES = 3  # of the built-in tools, whose description fails only on a busy machine
AT_ONCE = 8  # plugins that are asked at a time, so that a plugin that hangs delays few others
MAX_BESIDES = 100  # most tools that only one user's host of a server has
MAX_TOLD = 200  # characters of a reason, in an origin
# Codes of a plugin's own faults. The cause of another fault may be over at the next reload.
_ITS_OWN = ("EINVAL", "EPROTO", "ETIMEDOUT")


class Catalog:
    """The registry of the enabled plugins' objects, and the faults of the others."""

    def __init__(
        self, pool: Pool, cache: Descriptions | None = None, notify: Callable[[], object] = object
    ) -> None:
        """`notify` is called after each attempt to get a plugin's description."""
        self._pool = pool
        self._cache = cache
        self._notify = notify
        self._known: dict[hostcalls.Plugin, tuple[float, list[hostcalls.Descriptor]]] = {}
        # By plugin, the key of its description and the fault, as else all would wait for it at each reload.
        self._failed: dict[hostcalls.Plugin, tuple[str, str]] = {}
        self._serving: dict[str, hostcalls.Plugin] = {}
        # By plugin, the mark of its description, and the additional tools in the hosts of some users.
        self._marks: dict[hostcalls.Plugin, str] = {}
        self._besides: dict[tuple[hostcalls.Plugin, int], tuple[Object, ...]] = {}
        self._models = debug.objects(time.time())
        self.broken: dict[str, str] = {}
        self.taken: dict[str, list[str]] = {}  # by plugin, the objects with names that it took from others
        self.commands: dict[str, Object] = {}  # commands of `cortex`, by name; no registry has them

    async def registry(
        self,
        plugins: Iterable[hostcalls.Plugin],
        models: Iterable[Object] = (),
        *,
        consents: Mapping[str, Consent] = MappingProxyType({}),
        faults: Mapping[str, str] = MappingProxyType({}),
        withdrawn: Collection[str] = (),
    ) -> Registry:
        """Returns the registry: built-in models, those of providers, then built-in tools, then plugins.

        Models and plugins keep their order. `consents` has the plugins that may take names of others, and
        these names. `faults` has the faults of plugins that cannot be loaded. These go on in their former
        version, as does a plugin whose new version breaks here, unless they are `withdrawn`.
        """
        objects: dict[tuple[str, str], Object] = {}
        for model in (*self._models, *models):
            objects.setdefault(model.key, model)  # abi.md 2.7
        self.broken = dict(faults)
        every = (BUILTIN, *plugins)
        if self._cache is not None:
            await trio.to_thread.run_sync(self._cache.renew)
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for plugin in every:
                nursery.start_soon(self._learn, plugin, limit)
        by_name = {plugin.name: plugin for plugin in every}
        serving = {}
        self.taken = {}
        for name in dict.fromkeys((*by_name, *faults)):
            former = None if name in withdrawn else _former(self._serving.get(name), by_name.get(name))
            for version in (None if name in self.broken else by_name[name], former):
                if version is None:
                    continue
                if (why := self._add(objects, version, consents.get(name, ()))) is None:
                    serving[name] = version
                    break
                self.broken.setdefault(name, why)
        self._serving = serving
        self._besides = {key: own for key, own in self._besides.items() if key[0] in serving.values()}
        for own in self._besides.values():
            objects |= {object_.key: object_ for object_ in own if ("tool", object_.name) not in objects}
        self._known = {plugin: known for plugin, known in self._known.items() if plugin in serving.values()}
        self._failed = {plugin: failed for plugin, failed in self._failed.items() if plugin in every}
        if self._cache is not None:
            await trio.to_thread.run_sync(self._cache.sweep, set(serving))
        self.commands = {key[1]: objects.pop(key) for key in [*objects] if key[0] == described.COMMAND_CLASS}
        return Registry(objects)

    async def _learn(self, plugin: hostcalls.Plugin, limit: trio.CapacityLimiter) -> None:
        key = self._key(plugin)
        async with limit:
            try:
                if plugin in self._failed and self._failed[plugin][0] == key:
                    self.broken[plugin.name] = self._failed[plugin][1]
                elif plugin not in self._known:
                    self._known[plugin] = (time.time(), await self._description_in_time(plugin))
            except Fault as fault:
                self.broken[plugin.name] = fault.message[:MAX_WHY]
                if plugin.kind == FOLLOWED or (key and fault.code in _ITS_OWN):
                    self._failed[plugin] = (key, fault.message[:MAX_WHY])
            self._notify()

    def _key(self, plugin: hostcalls.Plugin) -> str:
        """Returns the key of a plugin's description in the cache, or "" if it is not kept."""
        return self._cache.key(plugin) if self._cache is not None else ""

    async def _description_in_time(self, plugin: hostcalls.Plugin) -> list[hostcalls.Descriptor]:
        for _ in range(1, OWN_TRIES if plugin == BUILTIN else 1):
            with contextlib.suppress(Fault):
                return await self._description(plugin)
            self._notify()
        return await self._description(plugin)

    async def _description(self, plugin: hostcalls.Plugin) -> list[hostcalls.Descriptor]:
        """Returns the plugin's description, from the cache or from its host."""
        cache = self._cache
        if cache is None or not (key := self._key(plugin)):
            return await self._describe(plugin)
        if (data := await trio.to_thread.run_sync(cache.get, plugin.name, key)) is not None:
            with contextlib.suppress(Fault, *UNREADABLE):
                return described.checked(data)
        descriptors = await self._describe(plugin)
        await trio.to_thread.run_sync(cache.put, plugin.name, key, msgspec.json.encode(descriptors))
        return descriptors

    def _add(self, objects: dict[Key, Object], plugin: hostcalls.Plugin, consent: Consent) -> str | None:
        """Add all of a plugin's objects or none. Returns the reason if none were added."""
        own = {object_.key: object_ for object_ in self._objects(plugin)}
        holders = {key: objects[key].origin.split(" ")[0] for key in own if key in objects}
        conflicts = [key for key in sorted(holders) if consent != REPLACE and "/".join(key) not in consent]
        if conflicts:
            class_, name = conflicts[0]
            holder = holders[conflicts[0]]
            mend = f"to take that name: ctx plugin enable {plugin.name} --replace"
            return f"its {class_} {name} is already one of {holder}; {mend}"
        for key, holder in holders.items():
            own[key] = replace(own[key], origin=f"{own[key].origin} (replaces that of {holder})")
        if holders:
            self.taken[plugin.name] = sorted(map("/".join, holders))
        objects |= own
        return None

    def _objects(self, plugin: hostcalls.Plugin) -> list[Object]:
        registered, descriptors = self._known[plugin]
        origin = "builtin" if plugin == BUILTIN else f"plugin:{plugin.name}@{plugin.version}"
        if why := self.broken.get(plugin.name):  # a former version is served
            origin += f" (the former version, as the new one is refused: {one_line(why)[:MAX_TOLD]})"
        valid = (each for each in descriptors if not each.fault or names.fault_of(each.name) is None)
        return [described.object_of(plugin, origin, registered, each) for each in valid]

    @property
    def wrong(self) -> dict[str, str]:
        """The tools of served plugins that cannot be called, with their faults: a phrase for each plugin."""
        lines = {
            name: [f"{shown(each.name)[1:-1]}: {each.fault}" for each in self._known[plugin][1] if each.fault]
            for name, plugin in self._serving.items()
        }
        return {name: "; ".join(faults)[:MAX_WHY] for name, faults in lines.items() if faults}

    @property
    def plugins(self) -> dict[str, str]:
        """The plugins that are served or broken, each with its fault or ""."""
        return dict.fromkeys(self._serving, "") | self.broken

    def serving(self, name: str) -> hostcalls.Plugin | None:
        """Returns the plugin of that name in the version that is served now."""
        return self._serving.get(name)

    @property
    def served(self) -> tuple[hostcalls.Plugin, ...]:
        """The plugins that are served, in their order."""
        return tuple(self._serving.values())

    @property
    def starting(self) -> set[hostcalls.Plugin]:
        """The servers that have not greeted yet, whose hosts must not be ended."""
        return {plugin for plugin, (_, why) in self._failed.items() if why.startswith(STARTING)}

    async def follow(self, plugin: hostcalls.Plugin, unlike: str) -> tuple[str, bool]:
        """Wait until a plugin's description has another mark than `unlike`. Returns the new mark, and True if
        the description changes the registry."""
        host = await self._pool.acquire(plugin, describer())
        answer = None
        try:
            if (answer := await _answer(host, unlike)) is None:
                await ended(host)
        finally:
            # A host that has answered is asked again: a new host would not know the tools that this one has.
            if host.identity.label and answer is None:
                self._pool.retire(host)
            self._pool.release(host)
        if answer is None:
            raise Fault("EPROTO", f"its process {host.describe_end()}")
        known = self._known.get(plugin)
        self._failed.pop(plugin, None)
        self._marks[plugin] = answer.mark
        is_new = known is None or known[1] != answer.descriptors
        if is_new:
            self._known[plugin] = (time.time(), answer.descriptors)
        return answer.mark, is_new

    async def besides(self, host: Host, unlike: str) -> str:
        """Wait until a server's tools in a user's host differ from the answer with the mark `unlike`, and
        keep those that only this user has. Returns the mark of the answer, or "" when the host has ended."""
        plugin, uid = host.plugin, host.identity.uid
        answer = None
        with contextlib.suppress(Fault):
            answer = await _answer(host, unlike or self._marks.get(plugin, ""))
        known = {each.name for each in self._known.get(plugin, (0.0, []))[1]}
        begin, origin = f"{plugin.name.removeprefix(PREFIX)}.", f"plugin:{plugin.name}@{plugin.version}"
        descriptors = answer.descriptors if answer else []
        own = [
            each
            for each in descriptors
            if each.name not in known and each.name.startswith(begin) and not each.fault
        ]
        objects = (described.object_of(plugin, origin, time.time(), each) for each in own[:MAX_BESIDES])
        self._besides[plugin, uid] = tuple(replace(tool, home=uid) for tool in objects)
        if not own:
            del self._besides[plugin, uid]
        return answer.mark if answer else ""

    def note(self, plugin: hostcalls.Plugin, why: str) -> None:
        """Keep the reason why a plugin that is followed still has no description."""
        if plugin in self._failed and plugin.name in self.broken:
            self.broken[plugin.name] = why[:MAX_WHY]
            self._failed[plugin] = ("", why[:MAX_WHY])

    async def _describe(self, plugin: hostcalls.Plugin) -> list[hostcalls.Descriptor]:
        if plugin.kind == targets.PROCESS:  # its manifest has the description
            return described.checked(msgspec.json.encode(targets.descriptors(plugin)))
        host = await self._pool.acquire(plugin, describer())
        descriptors = None
        try:
            with trio.move_on_after(DESCRIBE_SECONDS) as clock:
                if (answer := await _answer(host)) is None:
                    await ended(host)  # before it is killed here
                descriptors = answer.descriptors if answer else None
        finally:
            # A labelled host is of no more use, as no caller may call it or look into it. A host that failed
            # would fail again after its plugin was mended. A server that is still being started is followed
            # in the host that starts it.
            starts = plugin.kind == FOLLOWED and clock.cancelled_caught
            if host.identity.label and not starts:
                self._pool.retire(host)
            self._pool.release(host, stuck=descriptors is None and not starts)
        if starts:
            raise Fault("ETIMEDOUT", f"{STARTING}, which may take long the first time")
        if descriptors is None and clock.cancelled_caught:
            raise Fault("ETIMEDOUT", f"it did not describe its tools within {DESCRIBE_SECONDS:g} s")
        if descriptors is None:
            raise Fault("EPROTO", f"it did not describe its tools; its process {host.describe_end()}")
        return descriptors


class _Said(NamedTuple):
    mark: str
    descriptors: list[hostcalls.Descriptor]


async def _answer(host: Host, unlike: str = "") -> _Said | None:
    """Returns the host's description of its plugin, or None if the host breaks off."""
    try:
        payload = await ask(host, hostcalls.Describe(unlike), wire.DESCRIPTORS, wire.MAX_STRINGS)
        return None if payload is None else _Said(hostcalls.mark(payload), described.checked(payload))
    except (OSError, *UNREADABLE) as error:
        raise Fault("EPROTO", f"its description cannot be read: {why_unread(error)}") from None


def _former(former: hostcalls.Plugin | None, current: hostcalls.Plugin | None) -> hostcalls.Plugin | None:
    """Returns the former version if it may replace a broken new one. A former version with the same files may
    not: it would keep a permission that was taken away."""
    same_files = former is not None and current is not None and "" != former.path == current.path
    return None if same_files and former != current else former


def describer() -> hostcalls.Identity:
    """Returns the identity in which plugins describe themselves: nobody under root (abi.md 4.39), else ours.

    Other programs may run as nobody, too. So the host is one that they cannot get into, and their calls never
    reach it.
    """
    if os.geteuid() == 0:
        return hostcalls.DESCRIBING
    return hostcalls.Identity(os.getuid(), os.getgid(), tuple(sorted(os.getgroups())))
