"""A plugin as a set of files in memory, from a directory or a .cpx and back to a .cpx.

A plugin consists of manifest.toml, package.toml, three more files, all of lib/, skills/, prompts/ and bin/,
and the directory of every program that the manifest names. No other file is read, packed or installed;
hidden files, backups and links are left out. A plugin with a manifest.json consists of every file of its
directory, and must have no links.

Rules: checks, signatures and installations use these bytes: no file is read twice, so that none can change
in between. A package is refused as a whole, before any use, for a name that could lead outside, or for two
names that some system takes for one.
This file must never know the place of installed plugins, nor the trusted publishers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from cortexfs.core.errors import Fault, code_of, os_faults
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import BACKUP, FILE, PACKAGE_FILE, Manifest
from cortexfs.core.manifestjson import FILE as JSON_FILE
from cortexfs.plugins.package import manifest_hash, manifests, tarball
from cortexfs.plugins.package.filenames import check_names, name_fault
from cortexfs.plugins.package.tarball import MAX_ENTRIES, MAX_UNPACKED
from cortexfs.state import no_links

SUFFIX = ".cpx"
FILES = (FILE, PACKAGE_FILE, "sbom.spdx.json", "risk.toml", "conformance.toml")
# Of these, upstream neither packs nor signs bin/, where its own templates put programs.
FOLDERS = ("lib", "skills", "prompts", "bin")
LIBRARIES = (".so", ".dylib")
RECORD = ".installed.json"  # the record beside the files of an installed plugin
# The only entries of a directory that are no part of a plugin with a manifest.json.
BESIDE = (RECORD, ".git")
BUILT = ("target", "release")  # folders in which cargo leaves a library
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

_SYSTEMS = {"Linux": "linux", "Darwin": "macos"}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class File(NamedTuple):
    data: bytes
    executable: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class PackageFiles(msgspec.Struct, frozen=True):
    """The files of one plugin by their paths, its manifest, and the paths that were left out."""

    files: Mapping[str, File]
    manifest: Manifest
    ignored: tuple[str, ...] = ()

    @property
    def contents(self) -> dict[str, bytes]:
        return {name: file.data for name, file in self.files.items()}

    @property
    def manifest_file(self) -> str:
        return FILE if FILE in self.files else JSON_FILE


def order(path: str) -> tuple[str, ...]:
    """Returns a key that sorts paths by their components: skills/a/x comes before skills/a-b/x."""
    return tuple(path.split("/"))


def library_of(manifest: Manifest) -> str | None:
    """Returns the path of the plugin's library within the plugin, or None if it has none there."""
    return _inside(governance.library_of(manifest) or "")


def checksum(data: bytes, name: str) -> str:
    """Returns the line that sha256sum(1) prints for a file. It is published beside a package."""
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n"


def check_checksum(text: str, data: bytes, name: str) -> None:
    """Compare a package with its .sha256, of which lines about other files do not count. Raises EINVAL."""
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    digests = {line[1].removeprefix("*"): line[0].lower() for line in lines if len(line) == 2}
    if name not in digests:
        raise Fault("EINVAL", f"the checksum file does not list {name}; ask its publisher")
    if digests[name] != hashlib.sha256(data).hexdigest():
        raise Fault("EINVAL", f"{name} does not match its checksum file; fetch it again")


def archive_name(folder: str, manifest: Manifest) -> str:
    """Returns the name of a package of the directory `folder`, for this system."""
    if not manifest.version.strip():
        raise Fault("EINVAL", f"{FILE}: version is blank; give the plugin one")
    return f"{folder}-v{manifest.version}-{platform()}{SUFFIX}"


def platform() -> str:
    """Returns the name of this system in packages."""
    host = os.uname()
    system = _SYSTEMS.get(host.sysname, host.sysname.lower())
    return f"{system}-{_MACHINES.get(host.machine, host.machine)}"


def pack(tree: PackageFiles) -> bytes:
    """Returns the .cpx of a plugin."""
    first = [name for name in FILES if name in tree.files]
    rest = sorted((name for name in tree.files if name not in FILES), key=order)
    return tarball.write((name, *tree.files[name]) for name in (*first, *rest))


def unpack(data: bytes, where: str) -> PackageFiles:
    """Returns the plugin in a .cpx. `where` names the archive in faults."""
    try:
        entries = tarball.read(tarball.inflate(data))
        check_names([entry.name for entry in entries], {entry.name for entry in entries if entry.is_folder})
        files = {
            each.name: _file(each.name, each.data, each.executable) for each in entries if not each.is_folder
        }
        if FILE not in files and JSON_FILE not in files:
            raise Fault("EINVAL", f"cpx archive missing {FILE}; make one with: ctx plugin pack")
        manifest = _manifest(files)
        if manifests.is_json(manifest):
            return _plugin_files(files, manifest, ())
        selection = _Wanted(manifest, files.__contains__)
        chosen = {name: file for name, file in files.items() if selection.takes(name)}
        return _plugin_files(chosen, manifest, tuple(name for name in files if name not in chosen))
    except Fault as fault:
        raise Fault(fault.code, f"{where} is refused: {fault.message}") from None


def read(folder: Path) -> PackageFiles:
    """Returns the plugin in a directory, with the present content of each file."""
    with os_faults(f"{folder} cannot be read"):
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _read(top)
    except Fault as fault:
        raise Fault(fault.code, f"{folder} is refused: {fault.message}") from None
    finally:
        os.close(top)


def _read(top: int) -> PackageFiles:
    reader = _Reader()
    first = {name: file for name in FILES if (file := reader.file(top, name, name))}
    if FILE not in first and (found := reader.file(top, JSON_FILE, JSON_FILE)):
        return _read_json(top, reader, first | {JSON_FILE: found})
    if FILE not in first:
        raise Fault("ENOENT", f"it has no {FILE} and no {JSON_FILE}, so it is no plugin")
    manifest = _manifest(first)
    selection = _Wanted(manifest, lambda path: _is_file(top, path))
    for name in sorted(os.listdir(top)):
        if name not in FILES:
            reader.walk(top, name, name, selection)
    files = first | reader.files
    library = library_of(manifest)
    # Take a library that cargo built and that was not copied to its place, as upstream does.
    if library and library not in files and (built := _built(top, reader, library)):
        files[library] = built
    check_names([*files], set())
    return _plugin_files(files, manifest, tuple(reader.ignored))


def _built(top: int, reader: _Reader, library: str) -> File | None:
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in BUILT:
            top = stack.enter_context(no_links.held(name, _FOLDER, top))
        return reader.file(top, posixpath.basename(library), library)
    return None


def _read_json(top: int, reader: _Reader, first: dict[str, File]) -> PackageFiles:
    """Returns a plugin of all files there, as the hash of a manifest.json covers every file."""
    for name in sorted(os.listdir(top)):
        if name not in first and name not in BESIDE:
            reader.walk(top, name, name)
    if reader.ignored:
        odd = shown(reader.ignored[0])
        mend = "ship a copy of what it leads to, or remove it"
        raise Fault("EINVAL", f"{odd} is neither a file nor a directory; {mend}")
    files = first | reader.files
    check_names([*files], set())
    beside = tuple(name for name in BESIDE[1:] if name in os.listdir(top))
    return _plugin_files(files, _manifest(files), beside)


class _Reader:
    """Reads below one directory, without following a link, and within the bounds of a package."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.ignored: list[str] = []
        self._room = MAX_UNPACKED
        self._entries = MAX_ENTRIES

    def file(self, parent: int, name: str, path: str) -> File | None:
        """Returns a plain file, or None if there is none. Links, devices and pipes are noted as ignored."""
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
            )
        except FileNotFoundError:
            return None
        except OSError as problem:
            if _is_file(parent, name):
                why = f"{shown(path)} cannot be read: {problem.strerror}"
                raise Fault(code_of(problem.errno), why) from None
            self._ignore(path)
            return None
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                self._ignore(path)
                return None
            data = file.read(self._room + 1)
        self._room -= len(data)
        self._entries -= 1
        if self._room < 0:
            raise Fault("EMSGSIZE", f"it has more than {MAX_UNPACKED >> 20} MiB")
        if self._entries < 0:
            raise Fault("EMSGSIZE", f"it holds more than {MAX_ENTRIES} files")
        return _file(path, data, bool(found.st_mode & 0o100))

    def walk(self, parent: int, name: str, path: str, selection: _Wanted | None = None) -> None:
        """Read the wanted files at `path` and below, or all files without `selection`."""
        if selection and not selection.leads(path):
            return self._ignore(path)
        if broken := name_fault(path):
            raise Fault("EINVAL", f"the name {shown(path)} {broken}")
        try:
            folder = os.open(name, _FOLDER | os.O_CLOEXEC, dir_fd=parent)
        except NotADirectoryError:
            if selection and not selection.takes(path):
                self._ignore(path)
            elif found := self.file(parent, name, path):
                self.files[path] = found
            return
        except OSError as problem:
            raise Fault(code_of(problem.errno), f"{shown(path)} cannot be read: {problem.strerror}") from None
        try:
            for child in sorted(os.listdir(folder)):
                self.walk(folder, child, f"{path}/{child}", selection)
        finally:
            os.close(folder)

    def _ignore(self, path: str) -> None:
        self.ignored.append(path.encode(errors="backslashreplace").decode())


class _Wanted:
    """The paths that belong to a plugin."""

    def __init__(self, manifest: Manifest, exists: Callable[[str], bool]) -> None:
        self._files = {*FILES}
        self._folders = {*FOLDERS}
        for path in _programs(manifest, exists):
            self._add(path)
        for tool in manifest.native.tools if manifest.native else ():
            if folder := _inside(tool.working_dir or ""):
                self._folders.add(folder)
        if library := library_of(manifest):
            self._files.add(library)

    def _add(self, path: str) -> None:
        folder = posixpath.dirname(path)
        if folder:
            self._folders.add(folder)
        else:  # a program beside the manifest must not make the whole directory part of the plugin
            self._files.add(path)

    def takes(self, path: str) -> bool:
        if any(is_hidden(part) for part in path.split("/")):
            return False
        return path in self._files or any(above in self._folders for above in _above(path))

    def leads(self, path: str) -> bool:
        """Returns True if the path is taken, or if a path below may be."""
        below = f"{path}/"
        places = (*self._files, *self._folders)
        return not is_hidden(posixpath.basename(path)) and (
            path in places
            or any(above in self._folders for above in _above(path))
            or any(each.startswith(below) for each in places)
        )


def is_hidden(name: str) -> bool:
    """Returns True for names that editors and systems leave behind."""
    return name.startswith(".") or name.endswith("~") or name.lower().endswith(BACKUP)


def _above(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _inside(path: str) -> str | None:
    """Returns the plain form of a manifest's path, or None if it leads outside or to the plugin itself."""
    plain = posixpath.normpath(path) if path else "."
    return None if plain == "." or name_fault(plain) else plain


def _programs(manifest: Manifest, exists: Callable[[str], bool]) -> Iterator[str]:
    """Yields commands, and the scripts that interpreters get as arguments."""
    for tool in manifest.native.tools if manifest.native else ():
        if path := _inside(tool.command):
            yield path
        for argument in tool.args:
            if (path := _inside(argument)) and exists(path):
                yield path


def _manifest(files: Mapping[str, File]) -> Manifest:
    package = files.get(PACKAGE_FILE)
    parse, file = (
        (manifests.parse, files[FILE]) if FILE in files else (manifests.parse_json, files[JSON_FILE])
    )
    return parse(file.data, package.data if package else None)


def _file(path: str, data: bytes, executable: bool) -> File:
    # Compilers make libraries executable, and loaders do not need that.
    return File(data, executable and not path.endswith(LIBRARIES))


def _plugin_files(files: dict[str, File], manifest: Manifest, ignored: Iterable[str]) -> PackageFiles:
    """Returns the plugin. Raises ENOENT if a program or the library is missing: it would not run."""
    if manifests.is_json(manifest):
        manifest_hash.check(manifest.json, {name: file.data for name, file in files.items()})
    missing = "is not among its files; put it there, not hidden and not as a link"
    for tool in manifest.native.tools if manifest.native else ():
        path = _inside(tool.command)
        if path and path not in files:
            raise Fault("ENOENT", f"{shown(path)}, the command of the tool {shown(tool.name)}, {missing}")
    library = library_of(manifest)
    if library and "tools" in manifest.capabilities.provides and library not in files:
        raise Fault("ENOENT", f"{shown(library)}, the library, {missing}, or build it")
    return PackageFiles(
        {name: files[name] for name in sorted(files, key=order)}, manifest, tuple(sorted(ignored))
    )


def _is_file(top: int, path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path, dir_fd=top, follow_symlinks=False).st_mode)
    except OSError:
        return False
