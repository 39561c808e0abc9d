"""The plugins that are installed: one directory each, read in the order of their names.

Rules: a directory whose name begins with a dot or ends in .bak is none, nor is one without a manifest. What
is wrong with one plugin is its fault, a sentence, and the others are read; a plugin that is not enabled is
told as well. Of two directories with one plugin's name, the one that bears it counts.
This file must never know how a tool runs, nor who decides which plugins are enabled.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from cortexfs.core import governance
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.governance import HOST_VERSION, Mechanism
from cortexfs.core.manifest import BACKUP, FILE, PACKAGE_FILE, Manifest
from cortexfs.plugins import manifests
from cortexfs.plugins.commands import Command, resolve

FOLDER = "plugins"


class Installed(msgspec.Struct, frozen=True):
    """One plugin's directory, as it was when it was read."""

    path: Path
    manifest: Manifest | None = None  # None: it could not be read
    enabled: bool = False
    commands: tuple[Command, ...] = ()  # of manifest.native.tools, where it is enabled
    library: Path | None = None
    fault: str | None = None
    warning: str | None = None

    @property
    def name(self) -> str:
        return self.manifest.name if self.manifest else self.path.name


def scan(base: Path, enabled: Callable[[str], bool], available: frozenset[Mechanism]) -> list[Installed]:
    """Every plugin below `base`; without the directory there are none."""
    try:
        entries = sorted(os.listdir(base))
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{base} cannot be read: {problem.strerror}") from None
    folders = [base / name for name in entries if not name.startswith(".") and not name.endswith(BACKUP)]
    there = [folder for folder in folders if os.path.lexists(folder / FILE)]
    return _disputed([_installed(folder, enabled, available) for folder in there])


def read(folder: Path) -> Manifest:
    """The manifest of one directory."""
    manifest = _file(folder / FILE)
    if manifest is None:
        raise Fault("ENOENT", f"{folder} has no {FILE}, so it is no plugin")
    return manifests.parse(manifest, _file(folder / PACKAGE_FILE), str(folder))


def _installed(folder: Path, enabled: Callable[[str], bool], available: frozenset[Mechanism]) -> Installed:
    found = Installed(folder)
    try:
        manifest = read(folder)
        other = f"the directory {folder.name} holds the plugin {manifest.name}; they should have one name"
        found = Installed(folder, manifest, warning=None if folder.name == manifest.name else other)
        _check_version(manifest)
        governance.check(manifest, available)
        if not enabled(manifest.name):
            return found
        governance.check_boundary(manifest)
        library, commands = _library(manifest, folder), _commands(manifest, folder)
        return msgspec.structs.replace(found, enabled=True, library=library, commands=commands)
    except Fault as fault:
        return msgspec.structs.replace(found, fault=fault.message)


def check(manifest: Manifest, available: frozenset[Mechanism]) -> None:
    """All that a plugin's manifest has to fulfil before it is installed or loaded."""
    _check_version(manifest)
    governance.check(manifest, available)
    governance.check_boundary(manifest)


def _check_version(manifest: Manifest) -> None:
    try:
        governance.check_version(manifest)
    except Fault as fault:
        who = f"plugin '{manifest.name}' targets a different cortex version than {HOST_VERSION}"
        raise Fault(fault.code, f"{who}: {fault.message}") from None


def _library(manifest: Manifest, folder: Path) -> Path | None:
    if (name := governance.library_of(manifest)) is None or "tools" not in manifest.capabilities.provides:
        return None
    library = folder / name
    if not library.is_file():
        mend = "build it, or name it in [native].library"
        raise Fault("ENOENT", f"plugin '{manifest.name}' has no library {library}; {mend}")
    if not library.resolve().is_relative_to(folder.resolve()):
        raise Fault("EPERM", f"plugin '{manifest.name}' has its library outside: {library}; move it there")
    return library


def _commands(manifest: Manifest, folder: Path) -> tuple[Command, ...]:
    native = manifest.native
    if native is None or native.isolation != "process" or "tools" not in manifest.capabilities.provides:
        return ()
    return tuple(resolve(tool, folder) for tool in native.tools)


def _disputed(every: list[Installed]) -> list[Installed]:
    owners: dict[str, Path] = {}
    for one in every:
        if one.path.name == one.name or one.name not in owners:
            owners[one.name] = one.path
    return [
        one
        if owners[one.name] == one.path
        else msgspec.structs.replace(
            one,
            enabled=False,
            commands=(),
            library=None,
            fault=f"{owners[one.name]} has the plugin {one.name} already",
        )
        for one in every
    ]


def _file(path: Path) -> bytes | None:
    """A regular file's bytes, a little more than the bound at most; None where there is no such file."""
    try:
        # A pipe or a device of that name would keep the reader for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Fault("EINVAL", f"{path} is no file")
            return file.read(manifests.MAX_FILE + 1)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{path} cannot be read: {problem.strerror}") from None
