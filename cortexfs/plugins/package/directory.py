"""Installed plugins as directories: the list of them, their manifests, and the checks of these.

Rules: a directory with a hidden name, or that of a backup, is no plugin. A manifest that is a pipe or a
device does not block the reader.
This file must never know how a tool runs, nor how plugins are enabled.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.governance import HOST_VERSION, Mechanism
from cortexfs.core.manifest.toml import FILE, PACKAGE_FILE, Manifest
from cortexfs.core.manifestjson import FILE as JSON_FILE
from cortexfs.plugins.package import manifests
from cortexfs.plugins.package.package import is_hidden
from cortexfs.state import directories

FOLDER = directories.PLUGINS


def folders(base: Path) -> list[Path]:
    """Returns the directories of installed plugins, by name, or none if this user may not look."""
    try:
        names = sorted(os.listdir(base))
    except (FileNotFoundError, PermissionError):
        return []
    return [base / name for name in names if not is_hidden(name) and (base / name).is_dir()]


def read(folder: Path) -> Manifest:
    package = _file(folder / PACKAGE_FILE)
    if (manifest := _file(folder / FILE)) is not None:
        return manifests.parse(manifest, package, str(folder))
    if (manifest := _file(folder / JSON_FILE)) is not None:
        return manifests.parse_json(manifest, package, str(folder))
    raise Fault("ENOENT", f"{folder} has no {FILE} and no {JSON_FILE}, so it is no plugin")


def check(manifest: Manifest, available: frozenset[Mechanism]) -> None:
    """Check a plugin's manifest before it is installed or loaded. Raises a Fault."""
    if manifests.is_json(manifest):  # it has none of these fields
        return
    try:
        governance.check_version(manifest)
    except Fault as fault:
        sentence = f"plugin '{manifest.name}' targets a different cortex version than {HOST_VERSION}"
        raise Fault(fault.code, f"{sentence}: {fault.message}") from None
    governance.check(manifest, available)
    governance.check_boundary(manifest)


def _file(path: Path) -> bytes | None:
    try:
        return bounded(path, manifests.MAX_FILE)
    except Fault as fault:
        if fault.code != "ENOENT":
            raise
    return None


def bounded(path: Path, most: int) -> bytes:
    """Returns at most `most` + 1 bytes of a file, so that one too many shows. Refuses pipes and devices: they
    would block the reader for ever."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with os_faults(f"{path} cannot be read"), open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Fault("EINVAL", f"{path} is not a regular file; name a copy of its content")
        return file.read(most + 1)
