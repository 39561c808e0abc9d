"""Puts a checked plugin into the plugins directory, as a whole or not at all.

Rules: a plugin is written beside its place, under a hidden name, synced, and then exchanged with what is
there in one step. Whoever is killed leaves the old or the new one. What a killed one left is cleared by the
next, under a lock. Where the file system cannot exchange (NFS, some FUSE), the old one is moved aside first,
and `settle` moves it back should nothing have taken its place.
This file must never know what is in a plugin, nor whether it may be installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cortexfs.core import names
from cortexfs.core.errors import Fault, code_of
from cortexfs.plugins.package.package import File
from cortexfs.state import believed, locked_store, no_links, whole_files

LOCK = ".lock"
_NEW, _OLD = ".new", ".old"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # renameat2(2)
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)


def exchange(one: Path, other: Path) -> None:
    """Let two paths change places, at once; OSError where the kernel or the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):  # musl before 1.2.6
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if libc.renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def install(
    base: Path, name: str, files: Mapping[str, File], exchange: Callable[[Path, Path], None] = exchange
) -> Path:
    """Install or replace the plugin `name`; its directory."""
    names.check(name)
    with _locked(base) as held:
        place, draft = held / name, held / f".{name}{_NEW}"
        try:
            write(draft, files)
            if os.path.lexists(place):
                _swap(draft, place, exchange)
            else:
                draft.rename(place)
            whole_files.sync(held)
        finally:
            _remove(draft)
    return base / name


def remove(base: Path, name: str) -> None:
    """Remove the plugin `name`: gone at once, and never half."""
    names.check(name)
    with _locked(base) as held:
        place = held / name
        if not os.path.lexists(place):
            raise Fault("ENOENT", f"no plugin {name!r} is installed in {base}; see: ctx plugin list")
        aside = held / f".{name}{_NEW}"  # as something unfinished, which nobody will move back
        place.rename(aside)
        whole_files.sync(held)
        _remove(aside)


def settle(base: Path) -> None:
    """Clear what killed installations left, and bring back what they had moved aside."""
    if base.is_dir():
        with _locked(base):
            pass


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[Path]:
    """Hold the directory alone, and yield it as no_links.folder does; every fault of the disk becomes a
    sentence."""
    held = base
    try:
        with no_links.folder(base.parent, base.name, 0o755) as held, locked_store.alone(held, LOCK):
            _settle(held)
            yield held
    except OSError as problem:
        where = str(problem.filename or base).replace(str(held), str(base), 1)
        raise Fault(code_of(problem.errno), f"{where} cannot be changed: {problem.strerror}") from None


def _settle(base: Path) -> None:
    for name in os.listdir(base):
        left = base / name
        if name.startswith(".") and name.endswith(_OLD):
            place = base / name.removeprefix(".").removesuffix(_OLD)
            if not os.path.lexists(place):
                left.rename(place)
            else:
                _remove(left)
        elif name.startswith(".") and name.endswith(_NEW):
            _remove(left)


def _swap(draft: Path, place: Path, exchange: Callable[[Path, Path], None]) -> None:
    """Put the draft in its place; what was there is then the draft, or gone."""
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
    """Write a directory that nobody knows of yet; modes do not depend on a umask."""
    draft.mkdir(mode=0o755)
    folders = {Path(): dict[str, File](), **{above: {} for path in files for above in Path(path).parents}}
    for path, file in files.items():
        folders[Path(path).parent][Path(path).name] = file
    for folder in sorted(folders):
        with no_links.folder(draft.parent, draft.name / folder, 0o755) as held:
            believed.set_mode(held, 0o755)
            for name, file in folders[folder].items():
                whole_files.write(held / name, [file.data], mode_of(file), exact=True, durable=durable)
    for folder in sorted(folders, reverse=True) if durable else ():
        whole_files.sync(draft / folder)


def _remove(path: Path) -> None:
    """Remove what is there, if anything; a link is removed and not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
