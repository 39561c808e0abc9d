"""The paths of files that were fetched when a plugin was installed, beside its own files.

This file must never know how files are fetched, nor which program runs them.
"""

from __future__ import annotations

FOLDER = ".fetched/"
MODULE = f"{FOLDER}entry.wasm"  # the module of kind wasm, fetched from its address
# For kind esm: the lock file with the hashes of the modules, the cache in which Deno finds them, and the
# registries that the installing user had chosen. Paths in the cache contain the names of these registries.
LOCK = "deno.lock"  # also the name of a lock file that the author ships
CACHE = "deno"
REGISTRIES = "registries.json"
REGISTRY_VARIABLES = ("NPM_CONFIG_REGISTRY", "JSR_URL")


def is_fetched(path: str) -> bool:
    return path.startswith(FOLDER)
