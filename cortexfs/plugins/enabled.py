"""The plugins that are enabled, as the catalog wants them: those of Python packages and installed ones.

Main path: `Offers.load` looks at everything that is enabled, in the order of enabling. An installed plugin is
read as a whole. It is checked as it was when it was installed: version, governance, changes since, the
signature, whether its publisher is still trusted. It is copied to where hosts may read it, and told as a
`hostcalls.Plugin` that points at the copy.

Rules: the bytes that were checked are the bytes that run. What is wrong with one plugin is a sentence about
it. What did not change on the disk is not read again while the daemon runs.
This file must never know what a plugin says of itself, which its host is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

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
from cortexfs.state.directories import keeping, place_of

RESERVED = ("builtin",)
_OUT_OF_USE = ("disabled", "quarantined")

_Fingerprint: TypeAlias = tuple[tuple[str, int, int, int, int], ...]


class EnabledPlugins(NamedTuple):
    plugins: tuple[hostcalls.Plugin, ...]
    faults: dict[str, str]  # enabled, and not to be had
    consents: Mapping[str, config.Consent]  # of those that may take names of others
    withdrawn: frozenset[str] = frozenset()  # those whose former version is not to go on either
    texts: tuple[PluginText, ...] = ()  # skills and prompts


class _Seen(NamedTuple):
    """An installed plugin as it was found on the disk."""

    plugin: hostcalls.Plugin | None = None  # None: it has no tools
    fault: str | None = None
    withdrawn: bool = False
    needs: bool = False  # other plugins
    place: str = ""  # of its copy
    texts: tuple[PluginText, ...] = ()


class _Withdrawn(Fault):
    """Somebody does not want it to run, in no version."""


class Offers:
    def __init__(
        self, where: Config, read: Callable[[], object] = object, gpgv: Callable[[Path], bytes] = openpgp.run
    ) -> None:
        """`read` is called when an installed plugin has been read, and `gpgv` to look at a signature, in the
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
        self._seen: dict[Path, tuple[_Fingerprint, _Seen]] = {}

    def settle(self) -> None:
        """Once, before the first look: bring back what a killed installation had moved aside."""
        install.settle(self._base)
        openpgp.settle(self._config.state)

    def load(self) -> EnabledPlugins:
        """Blocks: it reads files."""
        names = config.enabled(self._config)
        installed = {path.name: path for path in directory.folders(self._base)}
        packaged = {one.plugin.name: one for one in found()}
        decided = tuple(one for path in self._decisions for one in _stat(path))
        plugins: list[hostcalls.Plugin] = []
        faults: dict[str, str] = {}
        withdrawn: set[str] = set()
        for name in names:
            if name in RESERVED:
                faults[name] = "its name is that of the tools that are built in; it needs another"
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
        """Those that have what they need of others, in the order in which they load."""
        order = dependencies.order(self._base, packaged, names)
        found = {plugin.name: plugin for plugin in plugins}
        for name, why in order.refused.items():
            if (refused := found.pop(name, None)) is not None:
                faults[name] = why
                # Nor does it go on as it was; of a new version, the former does.
                withdrawn |= {name} if self._loaded.get(name) == refused else set()
        place = {name: position for position, name in enumerate(order.names)}
        return sorted(found.values(), key=lambda plugin: place.get(plugin.name, len(place)))

    def one(self, name: str) -> hostcalls.Plugin:
        """An installed plugin as it would be loaded, enabled or not. Blocks: it reads files."""
        folders = {path.name: path for path in directory.folders(self._base)}
        if name not in folders:
            raise Fault("ENOENT", f"no plugin {name} is installed")
        seen = self._read(folders[name])
        if seen.plugin is None:
            raise Fault("EHOSTDOWN", seen.fault or "it has nothing to load")
        return seen.plugin

    def sweep(self, used: Iterable[hostcalls.Plugin | None]) -> None:
        """Remove the copies that nobody uses: neither the tree, nor a host, nor the next load."""
        kept = {plugin.path for plugin in used if plugin}
        kept |= {seen.place for _, seen in self._seen.values() if seen.place}
        self._copies.sweep(kept)

    def _look(self, folder: Path, decided: _Fingerprint) -> _Seen:
        before = (*_fingerprint(folder), *decided)
        known = self._seen.get(folder)
        # A fault may come from elsewhere: a full disk, a missing package.
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
            said = texts.of_plugin(tree.manifest.name, place)
            return _Seen(plugin and replace(plugin, trusted=trusted), place=str(place), texts=said)
        except Fault as fault:
            return _Seen(None, fault.message, isinstance(fault, _Withdrawn))

    def _joined(self, manifest: manifests.JsonPluginManifest, place: Path) -> hostcalls.Plugin:
        keeps = keeping(self._config.state, manifest.name)
        return json_kinds.plugin(manifest.json, place, self._settings.opened(manifest.name), keeps)

    def _check_origin(self, tree: PackageFiles, folder: Path) -> bool:
        """Returns True where a trusted publisher has signed it. Raises where it is not what was installed,
        and where its publisher is trusted no longer."""
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
    """The plugin as a host is told of it, with nothing decided about it; its files lie at `place`."""
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
    """One of a Python package, which the administrator installed; its files may change as well."""
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


def _fingerprint(folder: Path) -> _Fingerprint:
    """Returns a value that changes when a file does, without reading any."""
    return (
        *_stat(folder),
        *(
            seen
            for above, below, files in os.walk(folder)
            for name in (*below, *files)
            for seen in _stat(f"{above}/{name}")
        ),
    )


def _stat(path: Path | str) -> _Fingerprint:
    try:
        seen = os.lstat(path)
    except OSError:
        return ()
    return ((str(path), seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns),)
