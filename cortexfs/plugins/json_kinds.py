"""Plugins with a manifest.json, in the form for their hosts: a kind is one entry of `KINDS`.

A kind's function takes the facts about a plugin and returns the argument of its loader (host/loaders.py,
under the same name). Everything else (installing, copies, names, order, hot changes) is the same for all.

Rules: everything that may differ between two loads of a plugin is in the loader's argument. So a plugin with
another setting or capability is another plugin to the pool of hosts.
This file must never know how code runs, nor its callers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import hooks
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.targets import EsmModule, RpcEndpoint, WasmModule
from cortexfs.core.manifestjson import capabilities, fetched, settings
from cortexfs.core.manifestjson.capabilities import Effective, effective
from cortexfs.core.manifestjson.entry import REMOTE, EntryPoint, entry_of, files_of
from cortexfs.core.manifestjson.fields import JsonManifest, words_of
from cortexfs.plugins.install.decisions import NOTHING, Chosen
from cortexfs.plugins.package import targets as files

Grants: TypeAlias = tuple[str, ...]  # the effective capabilities: declared - denied + granted
Config: TypeAlias = dict[str, Any]  # the settings as they were set, or else their defaults
Networks: TypeAlias = tuple[str, ...]  # networks without public addresses that it may connect to


def _esm(manifest: JsonManifest, place: Path, grants: Grants, config: Config, private: Networks) -> EsmModule:
    found, entry = _fetched(place), _entry(manifest)
    is_file = entry.form not in REMOTE
    if not is_file and not found:
        sentence = f"its module is {entry.text}, which is fetched at the installation"
        raise Fault("ENOENT", f"{sentence}; install it with: ctx plugin install")
    return files.esm(
        os.path.normpath(_file(entry, place)) if is_file else entry.text,
        str(place),
        capabilities=grants,
        config=config,
        private=private,
        events=manifest.events,
        commands=manifest.cli_commands,
        providers={provider.kind: provider.default_model for provider in manifest.config.providers},
        labels={provider.kind: provider.label for provider in manifest.config.providers},
        dry_runs=_dry_runs(manifest),
        words=words_of(manifest),
        fetched=found,
    )


def _entry(manifest: JsonManifest) -> EntryPoint:
    entry = entry_of(manifest.entry_point)
    assert entry is not None  # the reader of manifests has checked it
    return entry


def _file(entry: EntryPoint, place: Path) -> Path:
    """Returns the entry point: a file of the plugin, or one that its installation fetched."""
    within = files_of(entry) or (fetched.MODULE,)
    paths = (path for path in within if (place / path).is_file())
    return place / next(paths, within[-1])


def _fetched(place: Path) -> targets.FetchedPackages | None:
    folder = place / fetched.FOLDER
    if not (folder / fetched.LOCK).is_file():
        return None
    chosen = folder / fetched.REGISTRIES
    registries = msgspec.json.decode(chosen.read_bytes(), type=dict[str, str]) if chosen.is_file() else {}
    return targets.FetchedPackages(str(folder), registries)


def _wasm(
    manifest: JsonManifest, place: Path, grants: Grants, config: Config, private: Networks
) -> WasmModule:
    entry = _entry(manifest)
    if not (file := _file(entry, place)).is_file():
        sentence = f"its module is at {entry.text}, which is fetched at the installation"
        raise Fault("ENOENT", f"{sentence}; install it with: ctx plugin install")
    return files.wasm(
        str(file),
        capabilities=grants,
        config=config,
        environment=targets.environment_of(manifest.name, os.environ),
        private=private,
        dry_runs=_dry_runs(manifest),
        words=words_of(manifest),
    )


def _dry_runs(manifest: JsonManifest) -> tuple[str, ...]:
    return tuple(tool.name for tool in manifest.tools if tool.dry_run)


def _rpc(
    manifest: JsonManifest, place: Path, grants: Grants, config: Config, private: Networks
) -> RpcEndpoint:
    methods = tuple(tool.name for tool in manifest.tools)
    return RpcEndpoint(_entry(manifest).text, manifest.description, methods, grants, private)


KINDS: Mapping[str, Callable[[JsonManifest, Path, Grants, Config, Networks], targets.Target]] = {
    targets.ESM: _esm,
    targets.RPC: _rpc,
    targets.WASM: _wasm,
}


def reach(manifest: JsonManifest, is_fetched: bool, has_landlock: bool) -> list[str]:
    """Returns lines about a plugin's reach if it gets all that it asks for, and the layers that hold it."""
    return list(_LINES[manifest.kind](manifest, is_fetched, has_landlock))


def _reach_esm(manifest: JsonManifest, is_fetched: bool, has_landlock: bool) -> Iterator[str]:
    permissions = capabilities.deno_permissions(manifest.capabilities)
    holder = "held by Deno and Landlock" if has_landlock else "held by Deno"
    directory = " and its caller's directory"
    if "run" in permissions:
        yield "runs: every program that its caller may run, as its caller: not limited"
        yield "reads, writes and reaches: everything that its caller may, by these programs: not limited"
    else:
        written = "its caller's directory" if is_fetched else f"its own folder{directory}"
        yield "runs: no programs: held by Deno"
        yield f"reads: its own folder{directory if 'read' in permissions else ''}: {holder}"
        yield f"writes: {written if 'write' in permissions else 'nothing'}: {holder}"
        yield _reached("net" in permissions, "Deno", "Deno and seccomp")
    yield "some 1 GiB of memory and 30 s a call: held by the host"
    if is_fetched:
        yield "imports: the modules that were fetched when it was installed: held by Deno and hashes"


def _reach_rpc(manifest: JsonManifest, is_fetched: bool, has_landlock: bool) -> Iterator[str]:
    is_asked = not set(targets.NETWORK).isdisjoint(manifest.capabilities)
    target = f"{manifest.entry_point} alone, without redirects" if is_asked else "nothing"
    yield "reads, writes and runs: nothing, as it has no code here: held by the host"
    yield f"reaches: {target}: held by the host"
    yield "16 MiB and 30 s an answer: held by the host"


def _reach_wasm(manifest: JsonManifest, is_fetched: bool, has_landlock: bool) -> Iterator[str]:
    may_ask = not set(targets.NETWORK).isdisjoint(manifest.capabilities)
    yield "reads, writes and runs: no files, no programs and no system calls: held by the WebAssembly engine"
    yield _reached(may_ask, "the host", "the host")
    yield "32 MiB of memory and 120 s a call: held by the WebAssembly engine"


def _reached(may: bool, holder: str, closed_by: str) -> str:
    public = f"public addresses, and networks that --private names: held by {holder}"
    return f"reaches: {public if may else f'nothing: held by {closed_by}'}"


_LINES: Mapping[str, Callable[[JsonManifest, bool, bool], Iterator[str]]] = {
    targets.ESM: _reach_esm,
    targets.RPC: _reach_rpc,
    targets.WASM: _reach_wasm,
}


def plugin(
    manifest: JsonManifest, place: Path, chosen: Chosen = NOTHING, keeps: str = ""
) -> hostcalls.Plugin:
    """Returns the plugin for its hosts. `keeps` is the folder of its users' state."""
    grants, is_esm = granted(manifest, chosen).capabilities, manifest.kind == targets.ESM
    target = KINDS[manifest.kind](manifest, place, grants, _values(manifest, chosen), chosen.private)
    return hostcalls.Plugin(
        manifest.name,
        manifest.version,
        manifest.kind,
        targets.target(target),
        str(place),
        keeps=keeps,
        hooks=hooks(grants, manifest.events) if is_esm else (),
        rights=capabilities.process_rights(grants) if is_esm else (),
    )


def _values(manifest: JsonManifest, chosen: Chosen) -> dict[str, Any]:
    """Returns the values of the settings. A value that was set for another version is dropped if it does not
    fit this one."""
    known = settings.settings_of(manifest)
    fitting = {
        key: value
        for key, value in chosen.config.items()
        if key not in known or settings.fault_of(known[key], value) is None
    }
    fitting |= {key: value for key, value in chosen.secrets.items() if key in known and known[key].is_secret}
    return settings.values(known, fitting)


def granted(manifest: JsonManifest, chosen: Chosen) -> Effective:
    return effective(manifest.capabilities, chosen.decided("deny"), chosen.decided("grant"))
