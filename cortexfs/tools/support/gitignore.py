"""The files of a tree that git would ignore: .gitignore at every level, and .git itself.

Rules: the innermost file with a matching pattern decides, as in git. Above the start of a search, files count
up to the directory that holds .git. An unreadable file and an invalid line are skipped.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from cortexfs.sdk import ToolError
from cortexfs.tools.support.paths import opened_regular

NAME = ".gitignore"
MAX_SIZE = 1 << 20  # a longer file is skipped


class _File(NamedTuple):
    """One .gitignore. It matches `lead` + the path from the top without its first `cut` characters."""

    spec: GitIgnoreSpec
    lead: str = ""
    cut: int = 0


class IgnoreRules(NamedTuple):
    """The rules of one directory: those of the innermost file, then those of its parents."""

    file: _File | None = None
    around: IgnoreRules | None = None

    @classmethod
    def above(cls, top: str) -> IgnoreRules:
        """Returns the rules at the start of a search."""
        found: list[_File] = []  # outermost first
        lead, place = "", os.path.realpath(top)
        while not os.path.lexists(os.path.join(place, ".git")):
            place, name = os.path.split(place)
            if not name:
                return cls()  # not in a working tree, so files above do not count
            lead = f"{name}/{lead}"
            if spec := _read(os.path.join(place, NAME)):
                found.insert(0, _File(spec, lead))
        rules = cls()
        for file in found:
            rules = cls(file, rules)
        # An ignored directory that the caller names is searched all the same.
        return cls() if rules.match("") else rules

    def within(self, folder: int, cut: int) -> IgnoreRules:
        """Returns these with a directory's own rules. `cut` is the length of its path from the top."""
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
