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
from cortexfs.plugins.package import targets as declared_targets
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
        self, config: Config, read: Callable[[], object] = object, gpgv: Callable[[Path], bytes] = openpgp.run
    ) -> None:
        """`read` is called when an installed plugin has been read, and `gpgv` to check a signature, in the
        thread of `load`."""
        self._gpgv = gpgv
        self._config = config
        self._notify_read = read
        self._base = config.state / directory.FOLDER
        self._copies = Copies(place_of(config.state))
        self._trust = TrustStore(config.state)
        self._settings = decisions.DecisionStore(config.state)
        self._keys = config.directory / openpgp.KEYS
        self._decisions = (self._trust.path, self._settings.path, self._keys)
        self._loaded: dict[str, hostcalls.Plugin] = {}
        self._cache: dict[Path, tuple[tuple[str, ...], _Seen]] = {}

    def settle(self) -> None:
        """Restore files that a killed installation had moved aside. Call this once before `load`."""
        install.settle(self._base)
        openpgp.settle(self._config.state)

    def load(self) -> EnabledPlugins:
        """Returns all enabled plugins. Blocks, as it reads files."""
        names = config.enabled(self._config)
        installed = {path.name: path for path in directory.folders(self._base)}
        packaged = {each.plugin.name: each for each in found()}
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
                entry = self._look(installed[name], decided)
                plugins += [entry.plugin] if entry.plugin else []
                faults |= {name: entry.fault} if entry.fault else {}
                withdrawn |= {name} if entry.withdrawn else set()
            elif name not in packaged:
                mend = f"install it, or: ctx plugin disable {name}"
                faults[name] = f"it is enabled and not installed; {mend}"
                withdrawn.add(name)
            elif fault := packaged[name].fault:
                faults[name] = fault
            else:
                plugins.append(_marked(packaged[name]))
        self._cache = {path: entry for path, entry in self._cache.items() if path.name in names}
        if any(entry.needs for _, entry in self._cache.values()):
            plugins = self._ordered(plugins, faults, withdrawn, names, list(packaged.values()))
        self._loaded = {plugin.name: plugin for plugin in plugins}
        consents = config.consents(self._config)
        texts = tuple(each for path in sorted(self._cache) for each in self._cache[path][1].texts)
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
        entry = self._read(folders[name])
        if entry.plugin is None:
            raise Fault("EHOSTDOWN", entry.fault or "it has no tools to load")
        return entry.plugin

    def sweep(self, plugins: Iterable[hostcalls.Plugin | None]) -> None:
        """Remove the copies that neither a plugin of `plugins` nor the next load needs."""
        places = {plugin.path for plugin in plugins if plugin}
        places |= {entry.place for _, entry in self._cache.values() if entry.place}
        self._copies.sweep(places)

    def _look(self, folder: Path, decided: tuple[str, ...]) -> _Seen:
        before = (stamps.of_folder(folder), *decided)
        known = self._cache.get(folder)
        # A fault may have another cause, such as a full disk or a missing package.
        if known is None or known[0] != before or known[1].fault:
            self._cache[folder] = (before, self._read(folder))
            self._notify_read()
        return self._cache[folder][1]

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
            found = texts.of_plugin(tree.manifest.name, tree.contents, place)
            return _Seen(plugin and replace(plugin, trusted=trusted), place=str(place), texts=found)
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
            signer = openpgp.signer(manifest, tree.contents, self._keys, self._gpgv, self._config.state)
            if why or signer != key:
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
        kind, target = targets.NATIVE, targets.target(declared_targets.library(str(place / library)))
    else:
        kind, target = targets.PROCESS, targets.target(_programs(manifest, tree, place))
    confined = declared_targets.sandbox(manifest, place)
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
    commands = [declared_targets.resolve(tool, place) for tool in native.tools]
    programs = targets.programs(manifest, commands, native.protocol, records.digest(tree))
    memory, seconds = declared_targets.limits(manifest)
    tools = (
        replace(
            tool,
            memory_bytes=_least(tool.memory_bytes, memory),
            cpu_seconds=_least(tool.cpu_seconds, seconds),
        )
        for tool in programs.tools
    )
    return replace(programs, tools=tuple(tools))


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
