"""The rules for a copy of a plugin that replaces another without a question: it has the same keys and no
lower version, and both are scripts, or neither.

Rules: a publisher is its key, and not its name. Each key that signed the installed copy must have signed the
next copy, too, so that no publisher takes a name by adding a key first. An unreadable version, of damaged
files, is not compared: a new installation mends it.
This file must never know how a signature is checked, nor how a person is asked.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest import semver
from cortexfs.plugins.package import directory, records
from cortexfs.version import SCRIPT_VERSION


class Copy(NamedTuple):
    version: str
    publisher: str = ""
    key: str = ""  # the fingerprint; empty without a signature
    openpgp: str = ""

    @property
    def is_script(self) -> bool:
        return self.version == SCRIPT_VERSION

    @property
    def told(self) -> str:
        signers = [f"{shown(self.publisher)} with the key {self.key}"] if self.key else []
        signers += [f"the OpenPGP key {self.openpgp}"] if self.openpgp else []
        signed = f"signed by {' and '.join(signers)}" if signers else "unsigned"
        return f"{self.version or 'of no known version'}, {signed}"


def installed(folder: Path) -> Copy | None:
    """Returns the installed copy in a folder, or None if the folder does not exist."""
    if not folder.exists():
        return None
    version, record = "", records.PluginRecord("", {})
    with contextlib.suppress(Fault):
        version = directory.read(folder).version
    try:
        record = records.read(folder)
    except Fault as fault:
        if fault.code != "EPERM":  # EPERM: put there by hand, or damaged, so it counts as unsigned
            raise
    return Copy(version, record.publisher, record.fingerprint, record.openpgp)


def unlike(before: Copy, after: Copy) -> str:
    """Returns the reasons why `after` may not replace `before` without a question, or "" if it may."""
    lower = _lower(before.version, after.version)
    return " and ".join(filter(None, (_signed_unlike(before, after), _other_kind(before, after), lower)))


def _other_kind(before: Copy, after: Copy) -> str:
    if not before.version or before.is_script == after.is_script:
        return ""
    return f"it is {'' if after.is_script else 'not '}a script, unlike the installed copy"


def _signed_unlike(before: Copy, after: Copy) -> str:
    kinds = ((before.key, after.key), (before.openpgp, after.openpgp))
    if all(new == old for old, new in kinds if old):
        return "" if any(before[2:]) or not any(after[2:]) else "it is signed, unlike the installed copy"
    if not any(after[2:]):
        return "it is unsigned, unlike the installed copy"
    return "it is of another publisher"


def _lower(before: str, after: str) -> str:
    if not before or before == after:
        return ""
    try:
        is_lower = _full_version(after).key < _full_version(before).key
    except Fault:
        return "the two versions cannot be compared"
    return "its version is lower" if is_lower else ""


def _full_version(version: str) -> semver.Version:
    """Returns a version of three numbers, as a manifest.toml may leave out the last ones."""
    rest = version.lstrip(".0123456789")
    numbers = version.removesuffix(rest)
    return semver.parse(f"{numbers}{'.0' * (2 - numbers.count('.'))}{rest}")
