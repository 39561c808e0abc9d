"""The signs, read without running anything, that a Python package is another one than before.

Rules: only names, sizes and times are looked at. Where nobody can say which files are a package's, as of
one that is installed in place for its developer, there is no mark of it.
This file must never know what a package is used for.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import metadata

MAX_FILES = 4096  # of one package, which are looked at whenever plugins are
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")


def every_mark() -> str:
    """Of which packages there are: another one after each change by a package manager."""
    found = [f"{place}/{name}" for place in sys.path for name in _listed(place) if name.endswith(_INSTALLED)]
    return _mark(found)


def mark(name: str, location: str, module: str) -> str:
    """Of the files of one package, which has this module; empty where they are not known."""
    package = next(iter(metadata.distributions(name=name, path=[location])), None)
    if package is None or package.read_text("RECORD") is None:
        return ""
    files = package.files or ()
    tops = {file.parts[0].partition(".")[0] for file in files if file.parts}
    if module.partition(".")[0] not in tops or len(files) > MAX_FILES:
        return ""
    return _mark([str(package.locate_file(file)) for file in files])


def _listed(place: str) -> list[str]:
    try:
        return sorted(os.listdir(place))
    except OSError:  # an archive, or nothing
        return []


def _mark(paths: list[str]) -> str:
    """Of these files as they are now; empty where one is missing."""
    seen = hashlib.sha256()
    for path in paths:
        try:
            found = os.lstat(path)
        except OSError:
            return ""
        facts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        seen.update(f"{path}\0{facts}\n".encode(errors="surrogateescape"))
    return seen.hexdigest()
