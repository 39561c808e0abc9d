"""The enabled plugins, in the form for the catalog: those of Python packages and installed ones.

Main path: `Offers.load` looks at everything that is enabled, in the order of enabling. An installed plugin is
read as a whole, and checked again as at its installation: version, governance, changes since, signature, and
trust in its publisher. It is copied to a place that hosts may read, and becomes a `hostcalls.Plugin` that
points at the copy.

Rules: the bytes that were checked are the bytes that run. A fault of a plugin is a sentence about it, and the
others load. Files that did not change are not read again while the daemon runs.
This file must never know a plugin's description, which its host gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from cortexfs import config
from cortexfs.config import Config
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import governance, targets
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.manifestjson import fields
from cortexfs.linux import kernel_support
from cortexfs.plugins import dependencies, description_cache, json_kinds, texts
from cortexfs.plugins.install import decisions, install
from cortexfs.plugins.install.entry_points import FoundPlugin, found
from cortexfs.plugins.install.install import Copies
from cortexfs.plugins.package import directory, manifests, package, records
from cortexfs.plugins.package import targets as as_told
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.plugins.texts import PluginText
from cortexfs.plugins.trust import openpgp, signing
from cortexfs.plugins.trust.trust import TrustStore
from cortexfs.state import stamps
from cortexfs.state.directories import keeping, place_of

RESERVED = ("builtin",)
_OUT_OF_USE = ("disabled", "quarantined")


class EnabledPlugins(NamedTuple):
    plugins: tuple[hostcalls.Plugin, ...]
    faults: dict[str, str]  # of plugins that are enabled and cannot be loaded
    consents: Mapping[str, config.Consent]  # of plugins that may take names of others
    withdrawn: frozenset[str] = frozenset()  # plugins whose former version must not go on either
    texts: tuple[PluginText, ...] = ()  # skills and prompts


class _Seen(NamedTuple):
    """The result of reading an installed plugin."""

    plugin: hostcalls.Plugin | None = None  # None if it has no tools
    fault: str | None = None
    withdrawn: bool = False
    needs: bool = False  # it needs other plugins
    place: str = ""  # the path of its copy
    texts: tuple[PluginText, ...] = ()


class _Withdrawn(Fault):
    """The plugin was disabled or lost its trust, so no version of it may run."""


class Offers:
    def __init__(
        self, where: Config, read: Callable[[], object] = object, gpgv: Callable[[Path], bytes] = openpgp.run
    ) -> None:
        """`read` is called when an installed plugin has been read, and `gpgv` to check a signature, in the
        thread of `load`."""
        self._gpgv = gpgv
        self._config = where
        self._told_read = read
        self._base = where.state / directory.FOLDER
        self._copies = Copies(place_of(where.state))
        self._trust = TrustStore(where.state)
        self._settings = decisions.DecisionStore(where.state)
        self._keys = where.directory / openpgp.KEYS
        self._decisions = (self._trust.path, self._settings.path, self._keys)
        self._loaded: dict[str, hostcalls.Plugin] = {}
        self._seen: dict[Path, tuple[tuple[str, ...], _Seen]] = {}

    def settle(self) -> None:
        """Restore files that a killed installation had moved aside. Call this once before `load`."""
        install.settle(self._base)
        openpgp.settle(self._config.state)

    def load(self) -> EnabledPlugins:
        """Returns all enabled plugins. Blocks, as it reads files."""
        names = config.enabled(self._config)
        installed = {path.name: path for path in directory.folders(self._base)}
        packaged = {one.plugin.name: one for one in found()}
        decided = tuple(stamps.of_files([path]) for path in self._decisions)
        plugins: list[hostcalls.Plugin] = []
        faults: dict[str, str] = {}
        withdrawn: set[str] = set()
        for name in names:
            if name in RESERVED:
                faults[name] = "its name is that of the built-in tools; its author must choose another"
            elif name in installed and name in packaged:
                faults[name] = f"a Python package has a plugin {name}, too; uninstall one of them"
            elif name in installed:
                seen = self._look(installed[name], decided)
                plugins += [seen.plugin] if seen.plugin else []
                faults |= {name: seen.fault} if seen.fault else {}
                withdrawn |= {name} if seen.withdrawn else set()
            elif name not in packaged:
                mend = f"install it, or: ctx plugin disable {name}"
                faults[name] = f"it is enabled and not installed; {mend}"
                withdrawn.add(name)
            elif fault := packaged[name].fault:
                faults[name] = fault
            else:
                plugins.append(_marked(packaged[name]))
        self._seen = {path: seen for path, seen in self._seen.items() if path.name in names}
        if any(seen.needs for _, seen in self._seen.values()):
            plugins = self._ordered(plugins, faults, withdrawn, names, list(packaged.values()))
        self._loaded = {plugin.name: plugin for plugin in plugins}
        consents = config.consents(self._config)
        texts = tuple(one for path in sorted(self._seen) for one in self._seen[path][1].texts)
        return EnabledPlugins(tuple(plugins), faults, consents, frozenset(withdrawn), texts)

    def _ordered(
        self,
        plugins: list[hostcalls.Plugin],
        faults: dict[str, str],
        withdrawn: set[str],
        names: list[str],
        packaged: list[FoundPlugin],
    ) -> list[hostcalls.Plugin]:
        """Returns the plugins whose needs are met, in the order in which they load."""
        order = dependencies.order(self._base, packaged, names)
        found = {plugin.name: plugin for plugin in plugins}
        for name, why in order.refused.items():
            if (refused := found.pop(name, None)) is not None:
                faults[name] = why
                # A served version is withdrawn. If a new version is refused, the former goes on.
                withdrawn |= {name} if self._loaded.get(name) == refused else set()
        place = {name: position for position, name in enumerate(order.names)}
        return sorted(found.values(), key=lambda plugin: place.get(plugin.name, len(place)))

    def one(self, name: str) -> hostcalls.Plugin:
        """Returns an installed plugin as `load` would, even if it is not enabled. Blocks."""
        folders = {path.name: path for path in directory.folders(self._base)}
        if name not in folders:
            raise Fault("ENOENT", f"no plugin {name} is installed")
        seen = self._read(folders[name])
        if seen.plugin is None:
            raise Fault("EHOSTDOWN", seen.fault or "it has no tools to load")
        return seen.plugin

    def sweep(self, used: Iterable[hostcalls.Plugin | None]) -> None:
        """Remove the copies that neither a plugin of `used` nor the next load needs."""
        kept = {plugin.path for plugin in used if plugin}
        kept |= {seen.place for _, seen in self._seen.values() if seen.place}
        self._copies.sweep(kept)

    def _look(self, folder: Path, decided: tuple[str, ...]) -> _Seen:
        before = (stamps.of_folder(folder), *decided)
        known = self._seen.get(folder)
        # A fault may have another cause, such as a full disk or a missing package.
        if known is None or known[0] != before or known[1].fault:
            self._seen[folder] = (before, self._read(folder))
            self._told_read()
        return self._seen[folder][1]

    def _read(self, folder: Path) -> _Seen:
        try:
            tree = package.read(folder)
            if tree.manifest.trust in _OUT_OF_USE:
                raise _Withdrawn("EPERM", f"its trust is {tree.manifest.trust}")
            if tree.manifest.name != folder.name:
                raise Fault("EINVAL", f"{folder} holds the plugin {tree.manifest.name}; install it anew")
            directory.check(tree.manifest, kernel_support.available())
            trusted = self._check_origin(tree, folder)
            place = self._copies.place(tree)
            if manifests.is_json(tree.manifest):
                joined = replace(
                    self._joined(tree.manifest, place), files=records.digest(tree), trusted=trusted
                )
                return _Seen(joined, needs=dependencies.any_of(tree.manifest), place=str(place))
            plugin = declared(tree, place)
            said = texts.of_plugin(tree.manifest.name, tree.contents, place)
            return _Seen(plugin and replace(plugin, trusted=trusted), place=str(place), texts=said)
        except Fault as fault:
            return _Seen(None, fault.message, isinstance(fault, _Withdrawn))

    def _joined(self, manifest: manifests.JsonPluginManifest, place: Path) -> hostcalls.Plugin:
        keeps = keeping(self._config.state, manifest.name)
        return json_kinds.plugin(manifest.json, place, self._settings.opened(manifest.name), keeps)

    def _check_origin(self, tree: PackageFiles, folder: Path) -> bool:
        """Returns True if a trusted publisher signed the plugin. Raises EPERM if its files changed after the
        installation, or if its publisher is trusted no longer."""
        record = records.read(folder)
        records.check(tree, record)
        if record.openpgp and manifests.is_json(tree.manifest):
            self._check_key(tree.manifest.json, tree, record.openpgp)
        verdict = signing.verify(tree)
        if verdict.status == "invalid":
            raise Fault("EPERM", f"its signature is {verdict.text}; install it anew")
        if verdict.status == "verified" and not self._trust.trusts(verdict):
            mend = f"install it again to be asked, or: ctx plugin disable {folder.name}"
            raise _Withdrawn("EPERM", f"its publisher {verdict.publisher} is not trusted any more; {mend}")
        return verdict.status == "verified" or (bool(record.openpgp) and manifests.is_json(tree.manifest))

    def _check_key(self, manifest: fields.JsonManifest, tree: PackageFiles, key: str) -> None:
        try:
            why = openpgp.unchecked(manifest, self._keys)
            by = openpgp.signer(manifest, tree.contents, self._keys, self._gpgv, self._config.state)
            if why or by != key:
                raise Fault("EPERM", why or "its OpenPGP signature is of another key")
        except Fault as fault:
            mend = f"install it again, or: ctx plugin disable {tree.manifest.name}"
            raise _Withdrawn("EPERM", f"{fault.message}; {mend}") from None


def declared(tree: PackageFiles, place: Path) -> hostcalls.Plugin | None:
    """Returns the plugin for a host, without a user's decisions about it. Its files lie at `place`."""
    manifest = tree.manifest
    if manifests.is_json(manifest):
        return json_kinds.plugin(manifest.json, place)
    if "tools" not in manifest.capabilities.provides:
        return None
    library = package.library_of(manifest)
    path = str(place)
    if manifest.python:
        kind, target, path = "python", manifest.python.entry, str(place / "lib")
    elif library:
        kind, target = targets.NATIVE, targets.target(as_told.library(str(place / library)))
    else:
        kind, target = targets.PROCESS, targets.target(_programs(manifest, tree, place))
    confined = as_told.sandbox(manifest, place)
    # A program's effects have its plugin's capabilities already.
    rights = () if kind == targets.PROCESS else governance.process_rights(manifest)
    name, version, files = manifest.name, manifest.version, records.digest(tree)
    return hostcalls.Plugin(name, version, kind, target, path, confined, files=files, rights=rights)


def _marked(found: FoundPlugin) -> hostcalls.Plugin:
    """Returns a plugin of a Python package, with a mark of its files, as these may change. It is trusted, as
    the administrator installed it."""
    mark = description_cache.mark(found.distribution, found.location, found.plugin.target.partition(":")[0])
    return replace(found.plugin, files=mark, trusted=True)


def _programs(manifest: Manifest, tree: PackageFiles, place: Path) -> targets.Programs:
    native = manifest.native
    assert native is not None
    commands = [as_told.resolve(tool, place) for tool in native.tools]
    made = targets.programs(manifest, commands, native.protocol, records.digest(tree))
    memory, seconds = as_told.limits(manifest)
    tools = (
        replace(
            tool,
            memory_bytes=_least(tool.memory_bytes, memory),
            cpu_seconds=_least(tool.cpu_seconds, seconds),
        )
        for tool in made.tools
    )
    return replace(made, tools=tuple(tools))


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
