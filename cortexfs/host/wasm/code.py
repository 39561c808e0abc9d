"""From the bytes of a WebAssembly file to a module that keeps the contract, compiled or from the cache.

Rules: the bytes are checked before they are compiled, and a module's imports and exports before any of it
runs. The cache holds machine code, so it is read only from a directory of this user's to which no other user
can write. If anything about it is odd, it is ignored.
This file must never know what a plugin's functions do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

import wasmtime

from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson import wasm_layout
from cortexfs.state import whole_files

MAGIC = b"\0asm\1\0\0\0"
MAX_BYTES = 16 << 20  # a compiler takes some seconds for each MiB of small functions
MAX_STACK = 512 << 10
# Off: proposals that the contract does not need, whose code in the compiler no module may reach.
_OFF = (
    "wasm_memory64", "wasm_threads", "shared_memory", "wasm_multi_memory", "wasm_gc", "wasm_stack_switching",
    "wasm_function_references", "wasm_exceptions", "wasm_custom_page_sizes", "wasm_component_model",
    "wasm_relaxed_simd", "wasm_wide_arithmetic", "parallel_compilation",
)  # fmt: skip
# Parameters and results of a plugin's functions.
EXPORTS = {
    "plugin_get_abi_version": ("", "i"),
    "plugin_get_capabilities": ("ii", "i"),
    "plugin_execute_tool": ("iiiiii", "i"),
    "plugin_init": ("", ""),
    "plugin_destroy": ("", ""),
}
OPTIONAL = ("plugin_init", "plugin_destroy")
# And those of its host's.
IMPORTS = {
    "host_alloc": ("i", "i"),
    "host_free": ("i", ""),
    "host_log": ("ii", ""),
    "host_get_config": ("iiii", "i"),
    "host_set_state": ("iiii", ""),
    "host_get_state": ("iiii", "i"),
    "host_http_request": ("iiiiiiiiiii", "i"),
    "host_get_abi_version": ("", "i"),
    "host_get_time_ms": ("", "I"),
    "host_random": ("ii", ""),
}
_LETTERS = {"i32": "i", "i64": "I"}
_TYPES = {letter: name for name, letter in _LETTERS.items()}


def engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    for name in _OFF:
        setattr(config, name, False)
    config.epoch_interruption = True
    config.max_wasm_stack = MAX_STACK
    return wasmtime.Engine(config)


def read(path: str, sha256: str) -> bytes:
    """Returns the module's bytes. Raises Fault if they are not the checked ones."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Fault("EPROTO", f"its module cannot be read: {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise Fault("EPROTO", f"its module has over {MAX_BYTES >> 20} MiB")
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise Fault("EAGAIN", "its module file is new and must be checked first; try again")
    if not data.startswith(MAGIC):
        raise Fault("EPROTO", f"{path} is not a WebAssembly module in the binary format, version 1")
    return data


def compiled(engine: wasmtime.Engine, data: bytes, cache: str) -> wasmtime.Module:
    place = _place(cache, data) if cache else None
    module = place and _cached(engine, place)
    if not module:
        try:
            module = wasmtime.Module(engine, data)
        except wasmtime.WasmtimeError as error:
            why = " ".join(str(error).split())[:500]
            raise Fault("EPROTO", f"its module is not valid: {why}") from None
        if place:
            with contextlib.suppress(OSError):  # a cache that cannot be written is none
                whole_files.replace(place, [bytes(module.serialize())], 0o600, durable=False)
    _check(module)
    if why := wasm_layout.fault(data):
        raise Fault("EPROTO", why)
    return module


# -- the contract


def _check(module: wasmtime.Module) -> None:
    for item in module.imports:
        label = f"{item.module}.{item.name}"
        if item.module != "env" or item.name not in (*IMPORTS, "memory"):
            raise Fault("EPROTO", f"it imports {label[:200]}, which this host does not have")
        if item.name != "memory":
            _check_function(f"import {label}", item.type, IMPORTS[item.name or ""])
    exports = {item.name: item.type for item in module.exports}
    for name, types in EXPORTS.items():
        if name in exports:
            _check_function(name, exports[name], types)
        elif name not in OPTIONAL:
            raise Fault("EPROTO", f"it does not export {name}")
    imports_memory = any(item.name == "memory" for item in module.imports)
    if not isinstance(exports.get("memory"), wasmtime.MemoryType) and not imports_memory:
        raise Fault("EPROTO", "it does not export memory")


def _check_function(name: str, found: object, types: tuple[str, str]) -> None:
    if not isinstance(found, wasmtime.FuncType):
        raise Fault("EPROTO", f"its {name} is not a function")
    has = tuple(
        "".join(_LETTERS.get(str(kind), "?") for kind in side) for side in (found.params, found.results)
    )
    if has != types:
        is_ = f"({', '.join(map(str, found.params))}) -> {', '.join(map(str, found.results)) or 'nothing'}"
        raise Fault("EPROTO", f"its {name} is {is_[:200]}, and must be {_signature(*types)}")


def _signature(takes: str, returns: str) -> str:
    sides = [", ".join(_TYPES[letter] for letter in side) for side in (takes, returns)]
    return f"({sides[0]}) -> {sides[1] or 'nothing'}"


# -- the cache


def _place(cache: str, data: bytes) -> Path | None:
    """Returns the path for the machine code of these bytes, in a directory of this user's alone."""
    folder = Path(cache) / str(os.geteuid())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return None
    return folder / hashlib.sha256(data).hexdigest()


def _cached(engine: wasmtime.Engine, place: Path) -> wasmtime.Module | None:
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            return wasmtime.Module.deserialize(engine, file.read())
    except (OSError, wasmtime.WasmtimeError):  # such as code of another version of wasmtime
        return None
