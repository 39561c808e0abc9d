"""The meaning of a plugin's [sandbox] for its hosts, and for the programs that they start.

Rules: a path that is claimed is absolute, or the claim means nothing and is refused. What a claim takes is in
core/manifest/governance.py; whether this host has it was asked before.
This file must never know how a kernel holds any of it.
"""

from __future__ import annotations

from pathlib import Path

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest.toml import Manifest

# Programs and libraries: what a script needs to be one.
SYSTEM = (("/usr", "rx"), ("/bin", "rx"), ("/sbin", "rx"), ("/lib", "rx"), ("/lib64", "rx"))
HOST = (("/", "rx"),)

View = tuple[tuple[str, str], ...]


def sandbox(manifest: Manifest, place: Path) -> hostcalls.Sandbox | None:
    """For the plugin's hosts; None where nothing is claimed. Its files lie at `place`."""
    told = manifest.sandbox
    is_program = manifest.python is None and not _has_library(manifest)
    found = hostcalls.Sandbox(
        view=_view(manifest, place),
        network=told.network != "none",
        is_filtered=bool(told.seccomp),
        # A program is limited itself, by `limits`: its host runs no code of the plugin.
        memory_bytes=None if is_program or told.memory_mb is None else told.memory_mb << 20,
        cpu_seconds=None if is_program else told.cpu_seconds,
    )
    is_limited = told.memory_mb is not None or told.cpu_seconds is not None
    return found if is_limited or found != hostcalls.Sandbox() else None


def limits(manifest: Manifest) -> tuple[int | None, int | None]:
    """Bytes and seconds that each program of the plugin may have."""
    told = manifest.sandbox
    return None if told.memory_mb is None else told.memory_mb << 20, told.cpu_seconds


def _has_library(manifest: Manifest) -> bool:
    return manifest.native is not None and manifest.native.isolation == "trusted_in_process"


def _view(manifest: Manifest, place: Path) -> View | None:
    told, has = manifest.sandbox, manifest.capabilities
    if told.filesystem is None and not told.writable_paths:
        return None
    own: View = ((str(place), "rx"),)
    written = tuple((_absolute(path, "sandbox.writable_paths"), "rw") for path in told.writable_paths)
    if told.filesystem == "plugin_only":
        return (*SYSTEM, *own, *written)
    if told.filesystem == "declared_paths":
        read = tuple((_absolute(path, "capabilities.file_read"), "r") for path in has.file_read)
        write = tuple((_absolute(path, "capabilities.file_write"), "rw") for path in has.file_write)
        return (*SYSTEM, *own, *read, *write, *written)
    return (*HOST, *written)


def _absolute(path: str, field: str) -> str:
    if not path.startswith("/") or "\0" in path or any(letter in path for letter in "*?["):
        mend = "write a directory or a file, from / on and without patterns"
        raise Fault("EINVAL", f"{field}: {shown(path)} cannot be held; {mend}")
    return path
