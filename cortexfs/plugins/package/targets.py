"""Plugins as hosts are told of them, with the files that are there now.

What takes a file's place is another plugin to the pool of hosts.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from cortexfs.core.manifest.targets import EsmModule, Library, WasmModule
from cortexfs.state import stamps


def library(path: str) -> Library:
    return Library(path, stamps.of_file(path))


def esm(path: str, folder: str = "", **fields: Any) -> EsmModule:
    """`folder` is where `path` is, unless it is said."""
    place = folder or os.path.dirname(path)
    return EsmModule(path, str(Path(place)), stamps.of_folder(place), **fields)


def wasm(path: str, **fields: Any) -> WasmModule:
    return WasmModule(path, hashlib.sha256(Path(path).read_bytes()).hexdigest(), **fields)
