"""The modules that are fetched for a plugin: one of WebAssembly, or those that JavaScript imports.

They are fetched once, when the plugin is installed, and then lie with its files, in `.fetched`. So the
installed code runs, and no server can change it later. For a JavaScript plugin they are a cache of Deno, and
the lock file with the content of the cache.

Rules: a signature cannot cover modules that are fetched later, so a signed plugin must have their hashes. Its
manifest has the hash of a WebAssembly module (no OpenPGP signature covers that, docs/manifest-json.md, Hash),
and a deno.lock those of JavaScript imports. A deno.lock binds an unsigned plugin, too. Installed modules are
not fetched again, unless the plugin's files differ.
This file must never know how Deno fetches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifestjson import fetched
from cortexfs.core.manifestjson.entry import REMOTE, entry_of, files_of
from cortexfs.core.manifestjson.fetched import FetchRequest
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.plugins.package import manifest_hash, manifests, package, records
from cortexfs.plugins.package.filenames import check_names
from cortexfs.plugins.package.package import File, PackageFiles
from cortexfs.plugins.package.tarball import MAX_ENTRIES, MAX_UNPACKED

_LOCK = fetched.FOLDER + fetched.LOCK
MAX_MODULE = 16 << 20  # the most that a host takes
_CODE = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
# A text of JavaScript that imports from elsewhere. A wrong match costs no more than a run of Deno.
_NAMES_SOME = re.compile(rb"""["'`](?:npm|jsr|https?):""")


Fetch: TypeAlias = Callable[[str, int], bytes]
FetchModules: TypeAlias = Callable[[FetchRequest], dict[str, bytes]]


def address_of(manifest: JsonManifest) -> str | None:
    entry = entry_of(manifest.entry_point)
    return manifest.entry_point if manifest.kind == "wasm" and entry and entry.form == "https" else None


def completed(
    tree: PackageFiles,
    fetch: Fetch,
    modules: FetchModules | None = None,
    installed: Path | None = None,
) -> PackageFiles:
    """Returns the plugin with all modules that it needs. `installed` is the folder for an installed copy.

    Files of the source in `.fetched` are dropped: no signature and no lock file covers them.
    """
    manifest = tree.manifest
    files = {name: file for name, file in tree.files.items() if not fetched.is_fetched(name)}
    tree = msgspec.structs.replace(tree, files=files)
    if not manifests.is_json(manifest):
        return tree
    if address := address_of(manifest.json):
        _check_signed(manifest, address)
        return _checked(tree, manifest.json, {fetched.MODULE: File(fetch(address, MAX_MODULE))})
    if manifest.json.kind == "esm" and modules and (root := _root(manifest.json, files)):
        found = _installed(tree, installed) if installed else {}
        return _checked(tree, manifest.json, found or _modules(tree, manifest, root, modules))
    return _checked(tree, manifest.json, {})


def pins(tree: PackageFiles) -> dict[str, str]:
    """Returns the modules that were fetched for a JavaScript plugin, and the hash of each."""
    lock = tree.files.get(_LOCK)
    return manifest_hash.pins(lock.data, _LOCK) if lock else {}


def _check_signed(manifest: manifests.JsonPluginManifest, address: str) -> None:
    if manifest.package.signature and manifest.json.hash is None:
        mend = "its publisher must write the hash of the module into manifest.json and sign it again"
        raise Fault("EPERM", f"its signature does not cover {address}, the address of its code; {mend}")
    if manifest.json.signature is not None:
        mend = "its publisher must sign it with ctx plugin sign instead, or put the module into the package"
        raise Fault("EPERM", f"its OpenPGP signature does not cover {address}; {mend}")


def _checked(tree: PackageFiles, manifest: JsonManifest, found: dict[str, File]) -> PackageFiles:
    files = {**tree.files, **found}
    check_names([*files], set())
    size = sum(len(file.data) for file in files.values())
    if len(files) > MAX_ENTRIES or size > MAX_UNPACKED:
        most = f"{MAX_ENTRIES} files and {MAX_UNPACKED >> 20} MiB"
        raise Fault("EMSGSIZE", f"with its imports the plugin is over {most}; its author must import less")
    result = msgspec.structs.replace(tree, files=files)
    manifest_hash.check(manifest, result.contents)
    return result


# -- the imports of a JavaScript plugin


def _root(manifest: JsonManifest, files: dict[str, File]) -> str | None:
    """Returns the module where Deno begins to read, or None if no module imports from elsewhere."""
    entry = entry_of(manifest.entry_point)
    if entry is None or entry.form in REMOTE:
        return entry.text if entry else None
    has_imports = any(_NAMES_SOME.search(file.data) for name, file in files.items() if name.endswith(_CODE))
    return next((path for path in files_of(entry) if path in files), None) if has_imports else None


def _installed(tree: PackageFiles, folder: Path) -> dict[str, File]:
    """Returns the installed modules, if they were fetched for the very same files."""
    try:
        former = package.read(folder)
        records.check(former, records.read(folder))
    except Fault:
        return {}
    own = {name: file for name, file in former.files.items() if not fetched.is_fetched(name)}
    return {name: file for name, file in former.files.items() if name not in own} if own == tree.files else {}


def _modules(
    tree: PackageFiles, manifest: manifests.JsonPluginManifest, root: str, fetch: FetchModules
) -> dict[str, File]:
    shipped = tree.files.get(fetched.LOCK)
    found = fetch(FetchRequest(tree.contents, root, shipped and shipped.data))
    lock = found.get(fetched.LOCK)
    pinned = manifest_hash.pins(lock, fetched.LOCK) if lock else {}
    if not pinned:
        return {}
    if not shipped and (manifest.package.signature or manifest.json.signature):
        mend = f"its publisher must put a {fetched.LOCK} beside manifest.json and sign it again"
        raise Fault("EPERM", f"its signature does not cover its import {shown(min(pinned))}; {mend}")
    if shipped:
        _keep_to(manifest_hash.pins(shipped.data, fetched.LOCK), pinned)
    return {fetched.FOLDER + name: File(data) for name, data in found.items()}


def _keep_to(shipped: dict[str, str], pinned: dict[str, str]) -> None:
    for name, hash_ in pinned.items():
        if shipped.get(name) != hash_:
            mend = "its publisher must write it anew with: deno cache --lock"
            raise Fault("EPERM", f"{shown(name)}, which it imports, is not in its {fetched.LOCK}; {mend}")
