"""Where the files of a plugin lie that were fetched when it was installed, as paths beside its own.

This file must never know how they are fetched, nor what runs them.
"""

from __future__ import annotations

FOLDER = ".fetched/"
MODULE = f"{FOLDER}entry.wasm"  # of kind wasm, from its address
# Of kind esm: the cache that Deno finds its modules in, the lock file that says what they are, and the
# registries that whoever installed had chosen, by whose names they lie in the cache.
LOCK = "deno.lock"  # the name of one that the author ships, too
CACHE = "deno"
REGISTRIES = "registries.json"
REGISTRY_VARIABLES = ("NPM_CONFIG_REGISTRY", "JSR_URL")


def is_fetched(path: str) -> bool:
    return path.startswith(FOLDER)
