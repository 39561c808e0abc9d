"""Stamps of files: a file that replaces another has a different stamp.

This file must never know what is in a file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def of_file(path: str) -> str:
    seen = os.stat(path)
    return f"{seen.st_dev}.{seen.st_ino}.{seen.st_size}.{seen.st_mtime_ns}"


def of_folder(folder: str) -> str:
    """Returns one stamp of all files in the folder, by their names."""
    place = Path(folder)
    found = sorted(each for each in place.rglob("*") if each.is_file())
    stamps = (f"{each.relative_to(place)} {of_file(str(each))}\n" for each in found)
    return hashlib.sha256("".join(stamps).encode(errors="surrogateescape")).hexdigest()
