"""The copies of installed plugins that run: everybody may read them, and their names tell what is in them.

The state directory is closed to all but the daemon's user, and hosts are their callers. So the daemon, when
it has checked a plugin's bytes, writes the same bytes to a place of its own and lets hosts use that: nothing
can change between check and use, and a version that is replaced stays whole for calls that began with it.

Rules: only the daemon's user may write here, or nothing here is used. A copy that is there already is
compared before its first use. What no host needs any more is swept.
This file must never know what a plugin may do.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from cortexfs.core.errors import Fault, code_of
from cortexfs.plugins.install import install
from cortexfs.plugins.package import records
from cortexfs.plugins.package.package import File, PackageFiles
from cortexfs.state import believed

_DIGITS = 24  # of the hash in a name


class Copies:
    def __init__(self, base: Path) -> None:
        self.base = base
        self._compared: set[Path] = set()

    def place(self, tree: PackageFiles) -> Path:
        """A directory with exactly these files."""
        where = self.base / f"{tree.manifest.name}-{records.digest(tree)[:_DIGITS]}"
        try:
            self._own()
            if where not in self._compared or not where.is_dir():
                self._renew(where, tree)
                self._compared.add(where)
        except OSError as problem:
            why = f"{problem.filename or self.base} cannot be written: {problem.strerror}"
            raise Fault(code_of(problem.errno), why) from None
        return where

    def _own(self) -> None:
        self.base.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = self.base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            mend = f"remove it, or: chown {os.geteuid()} {self.base}; chmod 755 {self.base}"
            raise Fault("EACCES", f"others may change {self.base}, from which plugins run; {mend}")
        believed.set_mode(self.base, 0o755)

    def _renew(self, where: Path, tree: PackageFiles) -> None:
        if where.is_dir() and _is(where, tree):
            return
        draft = where.with_name(f".{where.name}")
        for left in (draft, where):
            shutil.rmtree(left, ignore_errors=True)
        install.write(draft, tree.files, durable=False)
        draft.rename(where)

    def sweep(self, used: Collection[str]) -> None:
        """Remove all but those in which one of `used` lies, which are paths."""
        kept = {path.relative_to(self.base).parts[0] for path in map(Path, used) if self.base in path.parents}
        for name in os.listdir(self.base) if self.base.is_dir() else ():
            if name not in kept:
                shutil.rmtree(self.base / name, ignore_errors=True)
                self._compared.discard(self.base / name)


def _is(where: Path, tree: PackageFiles) -> bool:
    """Returns True if that directory holds these files and no other."""
    top = str(where)
    there = {f"{above}/{name}"[len(top) + 1 :] for above, _, files in os.walk(top) for name in files}
    return there == {*tree.files} and all(_holds(f"{top}/{name}", file) for name, file in tree.files.items())


def _holds(path: str, file: File) -> bool:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as found:
        mode = stat.S_IMODE(os.fstat(found.fileno()).st_mode)
        return mode == install.mode_of(file) and found.read() == file.data
