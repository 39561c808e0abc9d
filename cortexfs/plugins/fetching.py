"""A module of WebAssembly that is not among its plugin's files: its entry point is an address.

It is fetched once, when the plugin is installed, and then lies with the files, so that what runs is what was
installed and no server decides what it is from day to day.

Rules: a signature cannot cover what was fetched later, so a signed plugin has to name the hash of it. An
OpenPGP signature does not cover that hash either (docs/manifest-json.md, Hash), so such a plugin has none.
This file must never know where plugins are installed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.entry import entry_of
from cortexfs.core.manifestjson.fields import Manifest
from cortexfs.plugins import jsonmanifests, manifesthash, sources
from cortexfs.plugins.manifesthash import FETCHED
from cortexfs.plugins.package import File, Tree

MAX_MODULE = 16 << 20  # what a host takes


def address_of(manifest: Manifest) -> str | None:
    entry = entry_of(manifest.entry_point)
    return manifest.entry_point if manifest.kind == "wasm" and entry and entry.form == "https" else None


def completed(tree: Tree, fetch: Callable[[str, int], bytes] = sources.fetch) -> Tree:
    """The plugin with its module. What lies in that place already is nobody's: no signature is of it."""
    manifest = tree.manifest
    tree = msgspec.structs.replace(
        tree, files={name: tree.files[name] for name in tree.files if name != FETCHED}
    )
    if not jsonmanifests.is_json(manifest) or not (address := address_of(manifest.json)):
        return tree
    if manifest.package.signature and manifest.json.hash is None:
        mend = "its publisher has to write the hash of the module into manifest.json and sign it again"
        raise Fault("EPERM", f"its signature does not cover {address}, from where its code comes; {mend}")
    if manifest.json.signature is not None:
        mend = "its publisher has to sign it with ctx plugin sign instead, or put the module into the package"
        raise Fault("EPERM", f"its OpenPGP signature does not cover {address}; {mend}")
    files = {**tree.files, FETCHED: File(fetch(address, MAX_MODULE))}
    whole = msgspec.structs.replace(tree, files=files)
    manifesthash.check(manifest.json, whole.contents)
    return whole
