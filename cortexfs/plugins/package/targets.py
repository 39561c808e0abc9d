"""The form of a plugin for hosts, with stamps of its present files, and the meaning of its [sandbox].

A plugin with a replaced file is another plugin to the pool of hosts.

Rules: a program and its working directory lie in the plugin's directory, after every symbolic link has been
followed, unless the tool asks for the host's paths. A relative path begins at the plugin; no PATH is
searched. A path in a claim must be absolute, as another would have no meaning, or the claim is refused.
core/manifest/governance.py has the needs of claims, and the caller has checked that this host meets them.
This file must never know how a program is started, or how a kernel holds a sandbox.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest.governance import EVERYTHING, library_of
from cortexfs.core.manifest.targets import EsmModule, Library, WasmModule
from cortexfs.core.manifest.toml import DeclaredProcessTool, Manifest
from cortexfs.state import stamps


def library(path: str) -> Library:
    return Library(path, stamps.of_file(path))


def esm(path: str, folder: str = "", **fields: Any) -> EsmModule:
    """Returns the module at `path`. `folder` defaults to the directory of `path`."""
    place = folder or os.path.dirname(path)
    return EsmModule(path, str(Path(place)), stamps.of_folder(place), **fields)


def wasm(path: str, **fields: Any) -> WasmModule:
    return WasmModule(path, hashlib.sha256(Path(path).read_bytes()).hexdigest(), **fields)


class ProgramCommand(NamedTuple):
    argv: tuple[str, ...]
    working_dir: str


def resolve(tool: DeclaredProcessTool, plugin: Path) -> ProgramCommand:
    """Returns command and working directory as absolute paths with their links, or raises a Fault."""
    home = _canonical(plugin, "plugin directory", tool)
    command, working_dir = plugin / tool.command, plugin / (tool.working_dir or ".")
    pairs = (("command", command), ("working_dir", working_dir))
    if not tool.allow_host_paths:  # checked even if the path does not exist
        for field, path in pairs:
            if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(plugin)):
                raise _outside(field, tool)
    if not command.is_file():
        mend = "a relative one begins at the plugin"
        raise _fault("ENOENT", tool, f"command not found: {tool.command}; {mend}")
    if not working_dir.is_dir():
        mend = "it must be a directory with a file in it, as empty directories are not installed"
        raise _fault("ENOENT", tool, f"working_dir not found: {tool.working_dir}; {mend}")
    for field, path in pairs:
        if not tool.allow_host_paths and not _canonical(path, field, tool).is_relative_to(home):
            raise _outside(field, tool)
    return ProgramCommand((os.path.abspath(command), *tool.args), os.path.abspath(working_dir))


def _outside(field: str, tool: DeclaredProcessTool) -> Fault:
    """The path is shown as the manifest has it: the checked copy of the plugin may be a temporary one."""
    mend = "move it there, or write allow_host_paths = true"
    return _fault("EPERM", tool, f"{field} escapes plugin directory: {getattr(tool, field)}; {mend}")


def _canonical(path: Path, field: str, tool: DeclaredProcessTool) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as problem:  # 3.11 raises RuntimeError for a loop of links
        raise _fault("ENOENT", tool, f"cannot canonicalize {field} {path}: {problem}") from None


def _fault(code: str, tool: DeclaredProcessTool, text: str) -> Fault:
    return Fault(code, f"process tool '{tool.name}' {text}")


# The programs and libraries that a script needs to run.
SYSTEM = (("/usr", "rx"), ("/bin", "rx"), ("/sbin", "rx"), ("/lib", "rx"), ("/lib64", "rx"))
HOST = (("/", "rx"),)

View = tuple[tuple[str, str], ...]


def sandbox(manifest: Manifest, place: Path) -> hostcalls.Sandbox | None:
    """Returns the sandbox of the plugin's hosts, or None without a claim. Its files lie at `place`."""
    box = manifest.sandbox
    is_program = manifest.python is None and library_of(manifest) is None
    found = hostcalls.Sandbox(
        view=_view(manifest, place),
        network=box.network != "none",
        is_filtered=bool(box.seccomp),
        # `limits` bounds a program itself, as its host runs no code of the plugin.
        memory_bytes=None if is_program or box.memory_mb is None else box.memory_mb << 20,
        cpu_seconds=None if is_program else box.cpu_seconds,
    )
    is_limited = box.memory_mb is not None or box.cpu_seconds is not None
    return found if is_limited or found != hostcalls.Sandbox() else None


def limits(manifest: Manifest) -> tuple[int | None, int | None]:
    """Returns the limits of each program of the plugin: bytes of memory and seconds of CPU time."""
    box = manifest.sandbox
    return None if box.memory_mb is None else box.memory_mb << 20, box.cpu_seconds


def _view(manifest: Manifest, place: Path) -> View | None:
    box, rights = manifest.sandbox, manifest.capabilities
    is_open = not box.writable_paths or EVERYTHING in box.writable_paths
    if is_open and (box.filesystem is None or (box.filesystem == "read_only_host" and box.writable_paths)):
        return None
    own: View = ((str(place), "rx"),)
    written = tuple((_absolute(path, "sandbox.writable_paths"), "rw") for path in box.writable_paths)
    if box.filesystem == "plugin_only":
        return (*SYSTEM, *own, *written)
    if box.filesystem == "declared_paths":
        read = tuple((_absolute(path, "capabilities.file_read"), "r") for path in rights.file_read)
        write = tuple((_absolute(path, "capabilities.file_write"), "rw") for path in rights.file_write)
        return (*SYSTEM, *own, *read, *write, *written)
    return (*HOST, *written)


def _absolute(path: str, field: str) -> str:
    if path == EVERYTHING:
        return "/"
    if not path.startswith("/") or "\0" in path or any(letter in path for letter in "*?["):
        mend = f"write an absolute path without patterns, or {EVERYTHING} for everything"
        raise Fault("EINVAL", f"{field}: {shown(path)} cannot be enforced; {mend}")
    return path
