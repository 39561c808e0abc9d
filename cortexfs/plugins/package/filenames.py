"""The valid names of a plugin's files: every system takes them for one name, inside the plugin.

This file must never know the source of a name.
"""

from __future__ import annotations

import unicodedata

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest.toml import FILE

MAX_PATH = 1000  # characters: with the path of the plugins directory still well below PATH_MAX
MAX_PART = 255  # bytes: NAME_MAX
MAX_NOTED = 30_000  # of 10,000 files, each counted with its path, and of as many directories


def check_names(every: list[str], folders: set[str]) -> None:
    """Raises EINVAL for a name that leads outside, or for two that a system cannot tell apart."""
    seen: dict[str, str] = {}
    for name in every:
        if broken := name_fault(name):
            raise Fault("EINVAL", f"the name {shown(name)} {broken}")
        path, is_new = name, _note(name, name in folders, True, seen)
        while is_new and (path := path.rpartition("/")[0]):
            is_new = _note(path, True, False, seen)
        if len(seen) > MAX_NOTED:
            raise Fault("EMSGSIZE", "its files lie in too many directories")


def _note(path: str, is_folder: bool, is_named: bool, seen: dict[str, str]) -> bool:
    """Note a path in `seen`: by folded path it has the spelling, with a slash behind that of a directory.
    Returns True if it is new: then the directories above it may be new, too."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
    spelling = path + "/" if is_folder else path
    is_new, known = folded not in seen, seen.setdefault(folded, spelling)
    if known.removesuffix("/") != path:
        sentence = f"the names {shown(known)} and {shown(path)} are the same"
        raise Fault("EINVAL", f"{sentence} on systems that ignore case or normalize Unicode")
    if known != spelling:
        raise Fault("EINVAL", f"the name {shown(path)} belongs to a file and a directory")
    if is_named and not is_folder:
        if f"\0{folded}" in seen:
            raise Fault("EINVAL", f"the name {shown(path)} occurs twice")
        seen[f"\0{folded}"] = path
    return is_new


def name_fault(name: str) -> str | None:
    """Returns the rule that a path breaks, as a phrase that completes "the name ...", or None."""
    parts = name.split("/")
    if name.startswith("/"):
        return "is absolute"
    if ".." in parts:
        return "leads outside"
    if parts[0] == ".":
        return f"begins with ./ (cpx archive missing {FILE}); make one with: ctx plugin pack"
    if "." in parts or "" in parts:
        return "is not plain"
    # Control characters would break the lines that are signed. The other categories are invisible.
    kinds = {unicodedata.category(character) for character in name}
    if "Cs" in kinds:  # Python decodes bytes that are no text to these
        return "is not UTF-8"
    if kinds & {"Cc", "Cf", "Zl", "Zp"}:
        return "holds a control character"
    if len(name) > MAX_PATH or any(len(part.encode()) > MAX_PART for part in parts):
        return "is too long"
    return None
