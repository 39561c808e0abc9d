"""The modules that are fetched when a plugin is installed: their paths beside its own files, and the request
for those that a JavaScript plugin imports.

This file must never know how files are fetched, nor which program runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FOLDER = ".fetched/"
MODULE = f"{FOLDER}entry.wasm"  # the module of kind wasm, fetched from its address
# For kind esm: the lock file with the hashes of the modules, the cache in which Deno finds them, and the
# registries that the installing user had chosen. Paths in the cache contain the names of these registries.
LOCK = "deno.lock"  # also the name of a lock file that the author ships
CACHE = "deno"
REGISTRIES = "registries.json"
REGISTRY_VARIABLES = ("NPM_CONFIG_REGISTRY", "JSR_URL")


class FetchRequest(NamedTuple):
    files: Mapping[str, bytes]  # of the plugin
    root: str  # its entry point: a path among them, or an address
    lock: bytes | None  # the fetched files have to match it


def is_fetched(path: str) -> bool:
    return path.startswith(FOLDER)
