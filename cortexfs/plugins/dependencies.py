"""The plugins that can be enabled together, and the order in which they load.

Only a manifest.json names needed plugins, which may be of any kind. A dependency must be installed, enabled
and of a version in the range, and loads first. A peer must be so, too, but may load first or last, so that
two plugins may be peers of each other. `cortex` is this host.

Rules: this reads manifests and nothing else. A plugin without a readable manifest counts as not installed.
Plugins load in the order of enabling where needs allow it. A refusal of a plugin names the whole chain to the
plugin at fault.
This file must never know what a plugin does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import semver
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.manifestjson.rules import HOST
from cortexfs.plugins.install.entry_points import FoundPlugin
from cortexfs.plugins.package import directory, manifests

_NUMBERS = re.compile(r"\d+(?:\.\d+){0,2}", re.ASCII)


def order(base: Path, packaged: Iterable[FoundPlugin], enabled: Sequence[str]) -> EnableOrder:
    """Returns the enabled plugins in the order of enabling, each after its dependencies."""
    every = _every(base, packaged, enabled)
    return load_order([every[name] for name in (*enabled, *sorted(every)) if name in every])


def any_of(manifest: Manifest) -> bool:
    """Returns True if a plugin needs others. Most do not, and then no other manifest has to be read."""
    return manifests.is_json(manifest) and bool(manifest.json.dependencies or manifest.json.peer_dependencies)


def why_not(
    base: Path,
    packaged: Iterable[FoundPlugin],
    enabled: Sequence[str],
    name: str,
    manifest: Manifest | None = None,
) -> str | None:
    """Returns a sentence if `name` cannot be enabled beside the others, or None. Two peers of each other can
    be enabled one after the other. `manifest` is that of a copy that is not installed."""
    try:
        own = manifest or directory.read(base / name)
    except Fault:  # the daemon reports it
        return None
    if not any_of(own):
        return None
    names = [*enabled, name]
    every = _every(base, packaged, names)
    peers = _installed(own).peers
    names += [peer for peer in peers if peer in every and name in every[peer].peers]
    every = _every(base, packaged, names) | {name: _installed(own)}
    return load_order(every.values()).refused.get(name)


def _every(
    base: Path, packaged: Iterable[FoundPlugin], enabled: Collection[str]
) -> dict[str, InstalledPlugin]:
    found = [InstalledPlugin(entry.plugin.name, _version(entry.plugin.version)) for entry in packaged]
    for folder in directory.folders(base):
        with contextlib.suppress(Fault):
            found.append(_installed(directory.read(folder)))
    return {entry.name: msgspec.structs.replace(entry, enabled=entry.name in enabled) for entry in found}


def _installed(manifest: Manifest) -> InstalledPlugin:
    if manifests.is_json(manifest):
        fields = manifest.json
        return InstalledPlugin(fields.name, fields.version, fields.dependencies, fields.peer_dependencies)
    return InstalledPlugin(manifest.name, _version(manifest.version))


def _version(text: str) -> str:
    """Returns a version of three numbers, from a text that may have fewer."""
    try:
        return str(semver.parse(text))
    except Fault:
        numbers = _NUMBERS.match(text)
        parts = [str(int(part)) for part in numbers[0].split(".")] if numbers else []
        return ".".join([*parts, "0", "0", "0"][:3])


HOST_VERSION = "0.53.1"  # the version of this host for plugins that need cortex


# The names of plugins on the way to the fault, and the fault.
_Fault: TypeAlias = tuple[tuple[str, ...], str]


class InstalledPlugin(msgspec.Struct, frozen=True):
    name: str
    version: str
    dependencies: Mapping[str, str] = {}
    peers: Mapping[str, str] = {}
    enabled: bool = True


class EnableOrder(msgspec.Struct, frozen=True):
    names: tuple[str, ...]  # in the order in which they load
    refused: dict[str, str]  # by name, the reason in one sentence


def load_order(plugins: Iterable[InstalledPlugin]) -> EnableOrder:
    """Returns the enabled plugins in the order in which they load, and the refused ones."""
    by_name = {plugin.name: plugin for plugin in plugins}
    every = dict(sorted(by_name.items()))
    faults = {name: fault for name, plugin in every.items() if (fault := _fault(plugin, every))}
    enabled = [name for name, plugin in by_name.items() if plugin.enabled]
    refused = {name: reason for name in enabled if (reason := _reason(name, every, faults))}
    return EnableOrder(_sorted([name for name in enabled if name not in refused], every), refused)


def _sorted(waiting: list[str], every: Mapping[str, InstalledPlugin]) -> tuple[str, ...]:
    """Returns the names, each after its dependencies. These are among the names, and have no cycle."""
    loaded = {HOST}
    order: list[str] = []
    while waiting:
        name = next(name for name in waiting if every[name].dependencies.keys() <= loaded)
        waiting.remove(name)
        loaded.add(name)
        order.append(name)
    return tuple(order)


def _fault(plugin: InstalledPlugin, every: Mapping[str, InstalledPlugin]) -> _Fault | None:
    """Returns the fault of a plugin's own needs, or of a circle with the plugin in it."""
    if circle := _circle(plugin.name, every):
        return circle, "which is a cycle; their authors must break it"
    for need, range_ in _needs(plugin):
        if why := _unmet(need, range_, every):
            return (need,), why
    return None


def _reason(name: str, every: Mapping[str, InstalledPlugin], faults: Mapping[str, _Fault]) -> str | None:
    """Returns a sentence of the shortest way from a plugin to a plugin at fault, or None if it can load."""
    for way in _ways(name, lambda plugin: [need for need, _ in _needs(every[plugin]) if need != HOST]):
        if fault := faults.get(way[-1]):
            rest, why = fault
            return f"{_chain((*way, *rest), every)}, {why}"
    return None


def _ways(start: str, needed: Callable[[str], Iterable[str]]) -> Iterator[tuple[str, ...]]:
    """Yields the shortest way from a plugin to each plugin that it needs: breadth first, by name."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    for way in ways:  # the list grows meanwhile
        yield way
        for need in needed(way[-1]):
            if need not in seen:
                seen.add(need)
                ways.append((*way, need))


def _needs(plugin: InstalledPlugin) -> list[tuple[str, str]]:
    return sorted([*plugin.dependencies.items(), *plugin.peers.items()])


def _unmet(need: str, range_: str, every: Mapping[str, InstalledPlugin]) -> str | None:
    """Returns the reason why a need is not met, with the mend, or None if it is met."""
    plugin = InstalledPlugin(HOST, HOST_VERSION) if need == HOST else every.get(need)
    if plugin is None:
        return f"which is not installed; install it with ctx plugin install {need}"
    if not plugin.enabled:
        return f"which is not enabled; enable it with ctx plugin enable {need}"
    if not semver.satisfies(semver.parse(plugin.version), semver.parse_range(range_)):
        if need == HOST:
            return f"and this host is {HOST} {HOST_VERSION}; install a version of the plugin that takes it"
        return f"and {need} {plugin.version} is installed; install a version in {range_}"
    return None


def _chain(way: Sequence[str], every: Mapping[str, InstalledPlugin]) -> str:
    """Returns a chain such as: alpha needs beta ^1.0.0, which needs gamma *"""
    phrases = []
    for name, need in pairwise(way):
        range_ = dict(_needs(every[name]))[need]
        phrases.append(f"needs {need} {range_}".rstrip())
    return f"{way[0]} " + ", which ".join(phrases)


def _circle(start: str, every: Mapping[str, InstalledPlugin]) -> tuple[str, ...] | None:
    """Returns the shortest way along dependencies back to a plugin, without the plugin at its beginning."""
    ways = _ways(start, lambda plugin: sorted(every[plugin].dependencies.keys() & every.keys()))
    return next(((*way[1:], start) for way in ways if start in every[way[-1]].dependencies), None)
