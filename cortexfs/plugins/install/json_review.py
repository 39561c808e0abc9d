"""The review of a plugin with a manifest.json; review.py reviews the others.

Rules: as there, no code of the plugin runs. The caller knows the layers that hold a kind.
This file must never know how a review is printed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.core.hooks import POST, PRE, hooks
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest.targets import ESM, WASM
from cortexfs.core.manifestjson import FILE, fetched, read, wasm_layout, widgets
from cortexfs.core.manifestjson.capabilities import CAPABILITIES, bringing, effects
from cortexfs.core.manifestjson.entry import entry_of, files_of
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.plugins.install.review import InstallCheck, risk_row, signature
from cortexfs.plugins.json_kinds import reach
from cortexfs.plugins.package import manifest_hash
from cortexfs.plugins.package.package import PackageFiles

_COVERS = {
    "package": "hash of every file",
    "entry": "hash of the entry point alone: it covers no other file",
    "nothing": "no hash in the manifest",
    "later": "its module is fetched when it is installed",
}


def errors(folder: Path) -> list[InstallCheck]:
    """Returns all errors of a manifest that cannot be read, not only the first."""
    try:
        data = (folder / FILE).read_bytes()
    except OSError:
        return []
    return [InstallCheck(FILE, problem.sentence(str(folder / FILE))) for problem in read(data).errors]


def checks(manifest: JsonManifest, tree: PackageFiles | None) -> list[InstallCheck]:
    found = [
        InstallCheck("manifest"),
        InstallCheck(f"kind {manifest.kind}"),
        InstallCheck(
            "capabilities",
            None if bringing(manifest.capabilities) else 'it may provide nothing; for tools, write ["tools"]',
        ),
    ]
    if tree:
        found.append(_hash(manifest, tree.contents))
        if module := _module(manifest, tree):
            found.append(InstallCheck("memory", wasm_layout.fault(module) or None))
        found += [*_panels(manifest, tree), signature(tree)]
    return found


def _hash(manifest: JsonManifest, files: dict[str, bytes]) -> InstallCheck:
    try:
        return InstallCheck(_COVERS[manifest_hash.check(manifest, files)])
    except Fault as fault:
        return InstallCheck("hash", fault.message)


def _module(manifest: JsonManifest, tree: PackageFiles) -> bytes:
    """Returns the module of a plugin of kind wasm, or b"" if it is not fetched yet."""
    entry = entry_of(manifest.entry_point) if manifest.kind == WASM else None
    places = (files_of(entry) or (fetched.MODULE,)) if entry else ()
    paths = map(posixpath.normpath, places)
    return next((tree.files[path].data for path in paths if path in tree.files), b"")


def warnings(manifest: JsonManifest, tree: PackageFiles) -> list[str]:
    """Returns lines about possible faults of a plugin's files."""
    module = _module(manifest, tree)
    doubt = "" if wasm_layout.fault(module) else wasm_layout.doubt(module)
    return [doubt] if doubt else []


def _panels(manifest: JsonManifest, tree: PackageFiles) -> Iterator[InstallCheck]:
    for panel in manifest.ui.panels:
        yield _page(f"panel {panel.id}", panel.html_path, "ui.panels", tree)
    for widget in manifest.ui.widgets:
        if path := widgets.page_of(widget):
            yield _page(f"widget {widget.id}", path, "ui.widgets", tree)


def _page(name: str, path: str, where: str, tree: PackageFiles) -> InstallCheck:
    is_there = posixpath.normpath(path) in tree.files
    missing = f"{shown(path)} is not among its files; add it, or mend {where}"
    return InstallCheck(name, None if is_there else missing)


_HOOKS = {
    PRE: "each tool call of every caller: the plugin can refuse it or change its input",
    POST: "the output of each tool call: the plugin can withhold or change it",
}


def claims(manifest: JsonManifest, is_fetched: bool, has_landlock: bool) -> tuple[tuple[str, list[str]], ...]:
    """Returns the plugin's requests and limits, in words: lines by their titles."""
    hooked = hooks(manifest.capabilities, manifest.events) if manifest.kind == ESM else ()
    needed = (*manifest.dependencies.items(), *manifest.peer_dependencies.items())
    risks = (
        risk_row(tool.name, effect)
        for tool in manifest.tools
        for effect in effects(manifest.capabilities)
        if effect.confirmation == "always"
    )
    return (
        ("Requested capabilities", [f"{name}: {CAPABILITIES[name].about}" for name in manifest.capabilities]),
        ("Hooks", [_HOOKS.get(word, f"event {word}") for word in hooked]),
        ("Needs", [f"{name} {range_}" for name, range_ in needed]),
        ("Commands", [f"cortex {command.name}: {command.description}" for command in manifest.cli_commands]),
        ("Sandbox", reach(manifest, is_fetched, has_landlock)),
        ("Recommended risk profile", list(risks)),
    )
