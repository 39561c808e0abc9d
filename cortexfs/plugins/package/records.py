"""The record of an installation, which lies with a plugin's files and tells if they have changed.

Rules: the record has the path, hash and kind (program or file) of each file. It is hidden, so it is no part
of the plugin. It comes and goes with the files in one step. A plugin without a record was not installed.
This file must never know the trusted publishers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from cortexfs.core.errors import Fault, code_of
from cortexfs.core.jsontext import UNREADABLE, shown
from cortexfs.plugins.package.filenames import MAX_PATH
from cortexfs.plugins.package.package import RECORD, File, PackageFiles
from cortexfs.plugins.package.tarball import MAX_ENTRIES
from cortexfs.state import believed

FILE = RECORD
MAX_FILE = 2 * MAX_ENTRIES * MAX_PATH
_MAX_NAMES = 3  # files that a fault names


class PluginRecord(msgspec.Struct, frozen=True):
    source: str  # the source, for a person
    files: dict[str, str]
    publisher: str = ""
    fingerprint: str = ""  # of the key that signed the plugin; empty without a signature
    openpgp: str = ""  # the fingerprint of an OpenPGP key, likewise


def files_of(tree: PackageFiles) -> dict[str, str]:
    return {
        name: f"{'program' if file.executable else 'file'} {file.sha256}" for name, file in tree.files.items()
    }


def digest(tree: PackageFiles) -> str:
    """Returns one hash of all files of a plugin."""
    return hashlib.sha256(msgspec.json.encode(sorted(files_of(tree).items()))).hexdigest()


def file(record: PluginRecord) -> File:
    return File(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read(folder: Path) -> PluginRecord:
    mend = f"install it with: ctx plugin install {folder}"
    try:
        believed.folder(folder.parent)
        return msgspec.json.decode(believed.read(folder / FILE, MAX_FILE), type=PluginRecord)
    except FileNotFoundError:
        raise Fault("EPERM", f"{folder} was put there by hand; move it elsewhere and {mend}") from None
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{folder / FILE} cannot be read: {problem.strerror}") from None
    except UNREADABLE:
        raise Fault("EPERM", f"{folder / FILE} is damaged; install the plugin anew") from None


def check(tree: PackageFiles, record: PluginRecord) -> None:
    """Raises EPERM if a file was added, changed or removed after the installation."""
    found = files_of(tree)
    changed = sorted(key for key in found.keys() | record.files if found.get(key) != record.files.get(key))
    if changed:
        more = f" and {len(changed) - _MAX_NAMES} more" if len(changed) > _MAX_NAMES else ""
        names = ", ".join(map(shown, changed[:_MAX_NAMES]))
        raise Fault("EPERM", f"it has changed since it was installed: {names}{more}; install it anew")
