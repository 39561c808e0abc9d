"""The copy of a plugin that follows another without a question: one by the same keys, of no lower version,
and a script as the other is, or none.

Rules: a publisher is its key, and not what it calls itself. Whatever key the installed copy was signed with
has to have signed the next one too, so that nobody takes a name by adding a key first. A version that cannot
be read, as its files are damaged, is compared with nothing: to install it anew is how that is mended.
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
    key: str = ""  # the fingerprint; empty: it is not signed
    openpgp: str = ""

    @property
    def is_script(self) -> bool:
        return self.version == SCRIPT_VERSION

    @property
    def told(self) -> str:
        by = [f"{shown(self.publisher)} with the key {self.key}"] if self.key else []
        by += [f"the OpenPGP key {self.openpgp}"] if self.openpgp else []
        signed = f"signed by {' and '.join(by)}" if by else "unsigned"
        return f"{self.version or 'of no known version'}, {signed}"


def installed(folder: Path) -> Copy | None:
    """Returns what lies there; None where nothing does."""
    if not folder.exists():
        return None
    version, record = "", records.PluginRecord("", {})
    with contextlib.suppress(Fault):
        version = directory.read(folder).version
    try:
        record = records.read(folder)
    except Fault as fault:
        if fault.code != "EPERM":  # but put there by hand, or damaged: then nobody has signed it
            raise
    return Copy(version, record.publisher, record.fingerprint, record.openpgp)


def unlike(before: Copy, after: Copy) -> str:
    """Why the one may not take the place of the other without a question; empty: it may."""
    lower = _lower(before.version, after.version)
    return " and ".join(filter(None, (_signed_unlike(before, after), _other_kind(before, after), lower)))


def _other_kind(before: Copy, after: Copy) -> str:
    if not before.version or before.is_script == after.is_script:
        return ""
    return "it is a script, and what is there is not" if after.is_script else "what is there is a script"


def _signed_unlike(before: Copy, after: Copy) -> str:
    kinds = ((before.key, after.key), (before.openpgp, after.openpgp))
    if all(new == old for old, new in kinds if old):
        return "" if any(before[2:]) or not any(after[2:]) else "it is signed, and what is there is not"
    if not any(after[2:]):
        return "it is unsigned, and what is there is signed"
    return "it is of another publisher"


def _lower(before: str, after: str) -> str:
    if not before or before == after:
        return ""
    try:
        is_lower = _whole(after).key < _whole(before).key
    except Fault:
        return "nobody can say which of these versions is the newer one"
    return "its version is lower" if is_lower else ""


def _whole(version: str) -> semver.Version:
    """A version, where a manifest.toml may leave out its last numbers."""
    rest = version.lstrip(".0123456789")
    numbers = version.removesuffix(rest)
    return semver.parse(f"{numbers}{'.0' * (2 - numbers.count('.'))}{rest}")
