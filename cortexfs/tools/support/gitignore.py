"""The files of a tree that git would ignore: .gitignore at every level, and .git itself.

Rules: the innermost file that says something about a path decides, as in git; above the place where
a search begins, files count up to the directory that holds .git. A file that cannot be read or a
line that is no pattern says nothing.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from cortexfs.sdk import ToolError
from cortexfs.tools.support.paths import opened_regular

NAME = ".gitignore"
MAX_SIZE = 1 << 20  # a list of patterns that is longer is none


class _File(NamedTuple):
    """One .gitignore. A path below the top is, for it, `lead` + the path without `cut` characters."""

    spec: GitIgnoreSpec
    lead: str = ""
    cut: int = 0


class IgnoreRules(NamedTuple):
    """The rules that hold in one directory: those of the innermost file, and those around it."""

    file: _File | None = None
    around: IgnoreRules | None = None

    @classmethod
    def above(cls, top: str) -> IgnoreRules:
        """The rules that hold where a search begins."""
        found: list[_File] = []  # outermost first
        lead, place = "", os.path.realpath(top)
        while not os.path.lexists(os.path.join(place, ".git")):
            place, name = os.path.split(place)
            if not name:
                return cls()  # not in a working tree: what lies above means nothing
            lead = f"{name}/{lead}"
            if spec := _read(os.path.join(place, NAME)):
                found.insert(0, _File(spec, lead))
        rules = cls()
        for file in found:
            rules = cls(file, rules)
        # Whoever names an ignored directory wants it searched all the same.
        return cls() if rules.match("") else rules

    def within(self, folder: int, cut: int) -> IgnoreRules:
        """With the directory's own rules; `cut` is how long its path from the top is."""
        spec = _read(NAME, folder)
        return IgnoreRules(_File(spec, "", cut), self) if spec else self

    def match(self, path: str) -> bool:
        """Returns True if `path`, from the top and with a slash at the end for a directory, is ignored."""
        rules: IgnoreRules | None = self
        while rules is not None and (file := rules.file) is not None:
            verdict = file.spec.check_file(file.lead + path[file.cut :]).include
            if verdict is not None:
                return verdict
            rules = rules.around
        return False


def _read(path: str, folder: int | None = None) -> GitIgnoreSpec | None:
    try:
        with opened_regular(path, folder=folder) as file:
            data = file.read(MAX_SIZE + 1) or b""
    except (OSError, ToolError):
        return None
    if len(data) > MAX_SIZE:
        return None
    lines = data.decode(errors="surrogateescape").splitlines()
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
