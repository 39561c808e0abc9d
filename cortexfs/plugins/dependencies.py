"""The enabled plugins that have what they need of others, and the order in which they load.

Only a manifest.json says what it needs; what it needs may be any plugin. Its rules are in
core/manifestjson/needs.py, here is what there is.

Rules: this reads manifests and nothing else. A plugin whose manifest cannot be read is not there.
This file must never know what a plugin does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import semver
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.manifestjson.needs import EnableOrder, InstalledPlugin, load_order
from cortexfs.plugins.install.entry_points import FoundPlugin
from cortexfs.plugins.package import directory, json_manifests

_NUMBERS = re.compile(r"\d+(?:\.\d+){0,2}", re.ASCII)


def order(base: Path, packaged: Iterable[FoundPlugin], enabled: Sequence[str]) -> EnableOrder:
    """The enabled plugins as they load: in the order of enabling, each behind those that it depends on."""
    every = _every(base, packaged, enabled)
    return load_order([every[name] for name in (*enabled, *sorted(every)) if name in every])


def any_of(manifest: Manifest) -> bool:
    """Returns True if a plugin needs others at all: most do not, and then nobody else's manifest is read."""
    return json_manifests.is_json(manifest) and bool(
        manifest.json.dependencies or manifest.json.peer_dependencies
    )


def why_not(base: Path, packaged: Iterable[FoundPlugin], enabled: Sequence[str], name: str) -> str | None:
    """Why `name` cannot be enabled beside the others, as a sentence. Two that are each other's peers
    can, though one has to come first."""
    try:
        if not any_of(directory.read(base / name)):
            return None
    except Fault:  # which is for the daemon to say
        return None
    names = [*enabled, name]
    every = _every(base, packaged, names)
    peers = every[name].peers if name in every else ()
    names += [peer for peer in peers if peer in every and name in every[peer].peers]
    every = _every(base, packaged, names)
    return load_order(every.values()).refused.get(name)


def _every(
    base: Path, packaged: Iterable[FoundPlugin], enabled: Collection[str]
) -> dict[str, InstalledPlugin]:
    found = {
        one.plugin.name: InstalledPlugin(one.plugin.name, _version(one.plugin.version)) for one in packaged
    }
    for folder in directory.folders(base):
        if one := _installed(folder):
            found[one.name] = one
    return {
        name: InstalledPlugin(name, one.version, one.dependencies, one.peers, name in enabled)
        for name, one in found.items()
    }


def _installed(folder: Path) -> InstalledPlugin | None:
    try:
        manifest = directory.read(folder)
    except Fault:
        return None
    if json_manifests.is_json(manifest):
        said = manifest.json
        return InstalledPlugin(said.name, said.version, said.dependencies, said.peer_dependencies)
    return InstalledPlugin(manifest.name, _version(manifest.version))


def _version(text: str) -> str:
    """The version of a plugin that need not have one of three numbers."""
    try:
        return str(semver.parse(text))
    except Fault:
        numbers = _NUMBERS.match(text)
        parts = [str(int(part)) for part in numbers[0].split(".")] if numbers else []
        return ".".join([*parts, "0", "0", "0"][:3])
