"""Installs a checked plugin, as a whole or not at all, and keeps the copies that run.

Only the daemon's user can open the state directory, and hosts run as their callers. So the daemon checks a
plugin's bytes, and writes the same bytes to a place that hosts may read (`Copies`). No byte can change
between check and use, and a replaced version stays whole for calls that began with it.

Rules: a plugin is written beside its place, under a hidden name, synced, and then exchanged with the old
version in one step. A killed installation leaves the old version or the new one, and the next installation
removes its remains, under a lock. Where the file system cannot exchange (NFS, some FUSE), the old version is
moved aside first, and `settle` moves it back if its place is empty. Copies are used only if the daemon's user
alone may write there, and an existing copy is compared before its first use.
This file must never know a plugin's content or permissions, or if it may be installed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from cortexfs.core import names
from cortexfs.core.errors import Fault, code_of
from cortexfs.linux.syscalls import exchange
from cortexfs.plugins.package import records
from cortexfs.plugins.package.package import File, PackageFiles
from cortexfs.state import believed, locked_store, no_links, whole_files

LOCK = ".lock"
_NEW, _OLD = ".new", ".old"
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)


def install(
    base: Path, name: str, files: Mapping[str, File], exchange: Callable[[Path, Path], None] = exchange
) -> Path:
    """Install or replace the plugin `name`, and return its directory."""
    names.check(name)
    with _locked(base) as folder:
        place, draft = folder / name, folder / f".{name}{_NEW}"
        try:
            write(draft, files)
            if os.path.lexists(place):
                _swap(draft, place, exchange)
            else:
                draft.rename(place)
            whole_files.sync(folder)
        finally:
            _remove(draft)
    return base / name


def remove(base: Path, name: str) -> None:
    """Remove the plugin `name` in one step, never a part of it."""
    names.check(name)
    with _locked(base) as folder:
        place = folder / name
        if not os.path.lexists(place):
            raise Fault("ENOENT", f"no plugin {name!r} is installed in {base}; see: ctx plugin list")
        aside = folder / f".{name}{_NEW}"  # the name of an unfinished plugin, which `_settle` removes
        place.rename(aside)
        whole_files.sync(folder)
        _remove(aside)


def settle(base: Path) -> None:
    """Remove the remains of killed installations, and restore the versions that they had moved aside."""
    if base.is_dir():
        with _locked(base):
            pass


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[Path]:
    """Lock the directory, and yield it as no_links.folder does. Each OSError becomes a Fault with a
    sentence."""
    folder = base
    try:
        with no_links.folder(base.parent, base.name, 0o755) as folder, locked_store.alone(folder, LOCK):
            _settle(folder)
            yield folder
    except OSError as problem:
        place = str(problem.filename or base).replace(str(folder), str(base), 1)
        raise Fault(code_of(problem.errno), f"{place} cannot be changed: {problem.strerror}") from None


def _settle(base: Path) -> None:
    for name in os.listdir(base):
        path = base / name
        if name.startswith(".") and name.endswith(_OLD):
            place = base / name.removeprefix(".").removesuffix(_OLD)
            if not os.path.lexists(place):
                path.rename(place)
            else:
                _remove(path)
        elif name.startswith(".") and name.endswith(_NEW):
            _remove(path)


def _swap(draft: Path, place: Path, exchange: Callable[[Path, Path], None]) -> None:
    """Put the draft in its place. The old version then has the draft's name, or is removed."""
    try:
        return exchange(draft, place)
    except OSError as problem:
        if problem.errno not in _CANNOT:
            raise
    aside = place.with_name(f".{place.name}{_OLD}")
    place.rename(aside)
    whole_files.sync(place.parent)
    draft.rename(place)
    whole_files.sync(place.parent)
    _remove(aside)


def mode_of(file: File) -> int:
    return 0o755 if file.executable else 0o644


def write(draft: Path, files: Mapping[str, File], *, durable: bool = True) -> None:
    """Write a new directory that no other process uses yet. Modes do not depend on a umask."""
    draft.mkdir(mode=0o755)
    folders = {Path(): dict[str, File](), **{above: {} for path in files for above in Path(path).parents}}
    for path, file in files.items():
        folders[Path(path).parent][Path(path).name] = file
    for folder in sorted(folders):
        with no_links.folder(draft.parent, draft.name / folder, 0o755) as target:
            believed.set_mode(target, 0o755)
            for name, file in folders[folder].items():
                whole_files.write(target / name, [file.data], mode_of(file), exact=True, durable=durable)
    for folder in sorted(folders, reverse=True) if durable else ():
        whole_files.sync(draft / folder)


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it exists. A link is removed and not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_DIGITS = 24  # digits of the hash in a copy's name


class Copies:
    def __init__(self, base: Path) -> None:
        self.base = base
        self._compared: set[Path] = set()

    def place(self, tree: PackageFiles) -> Path:
        """Returns a directory with exactly these files."""
        copy = self.base / f"{tree.manifest.name}-{records.digest(tree)[:_DIGITS]}"
        try:
            self._own()
            if copy not in self._compared or not copy.is_dir():
                self._renew(copy, tree)
                self._compared.add(copy)
        except OSError as problem:
            why = f"{problem.filename or self.base} cannot be written: {problem.strerror}"
            raise Fault(code_of(problem.errno), why) from None
        return copy

    def _own(self) -> None:
        self.base.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = self.base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            mend = f"remove it, or: chown {os.geteuid()} {self.base}; chmod 755 {self.base}"
            raise Fault("EACCES", f"others may change {self.base}, from which plugins run; {mend}")
        believed.set_mode(self.base, 0o755)

    def _renew(self, copy: Path, tree: PackageFiles) -> None:
        if copy.is_dir() and _is(copy, tree):
            return
        draft = copy.with_name(f".{copy.name}")
        for path in (draft, copy):
            shutil.rmtree(path, ignore_errors=True)
        write(draft, tree.files, durable=False)
        draft.rename(copy)

    def sweep(self, used: Collection[str]) -> None:
        """Remove all copies except those that hold a path of `used`."""
        dirs = {path.relative_to(self.base).parts[0] for path in map(Path, used) if self.base in path.parents}
        for name in os.listdir(self.base) if self.base.is_dir() else ():
            if name not in dirs:
                shutil.rmtree(self.base / name, ignore_errors=True)
                self._compared.discard(self.base / name)


def _is(folder: Path, tree: PackageFiles) -> bool:
    """Returns True if the directory holds these files and no others."""
    top = str(folder)
    paths = {f"{above}/{name}"[len(top) + 1 :] for above, _, files in os.walk(top) for name in files}
    return paths == {*tree.files} and all(_holds(f"{top}/{name}", file) for name, file in tree.files.items())


def _holds(path: str, file: File) -> bool:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as found:
        mode = stat.S_IMODE(os.fstat(found.fileno()).st_mode)
        return mode == mode_of(file) and found.read() == file.data
