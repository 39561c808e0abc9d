"""The exports of this machine and its team.map: they decide who may call an object here, and as which user.

    alice@laptop = alice        a line of team.map: USER@MACHINE = USER HERE; * stands for every user there
    # a comment

Rules: a user that no line and no export names has no user here, least of all root. The first line that fits
counts. A user's own daemon exports as that user, whatever the map has.
This file must never know how a call came.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.state import believed
from cortexfs.state.stamps import ReadFile
from cortexfs.team.places import Export, TeamPlaces

_WHO = re.compile(r"[^\s@=#]{1,64}@[^\s@=#]{1,31}")
_MAX_MAP = 1 << 20


def check_who(text: str) -> str:
    """Returns USER@MACHINE, or raises EINVAL."""
    if not _WHO.fullmatch(text):
        raise Fault("EINVAL", f"{text!r} is not USER@MACHINE; * stands for every user, or every machine")
    return text


def fits(pattern: str, user: str, machine: str) -> bool:
    name, _, where = pattern.rpartition("@")
    return name in ("*", user) and where in ("*", machine)


def user_name(uid: int) -> str:
    """Returns the name of a user here, as other machines know the user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Fault("EACCES", f"uid {uid} has no user name here, which other machines need") from None


def parse(text: str, path: str) -> list[tuple[str, str]]:
    """Returns the pairs of a team.map."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        rule = line.partition("#")[0].strip()
        if not rule:
            continue
        pattern, equals, here = (part.strip() for part in rule.partition("="))
        if not equals or not _WHO.fullmatch(pattern) or not here or " " in here:
            raise Fault("EINVAL", f"{path}:{number}: write USER@MACHINE = USER, not {rule[:80]!r}")
        rows.append((pattern, here))
    return rows


def of_map(path: Path) -> list[tuple[str, str]]:
    data = believed.content_of(path, _MAX_MAP, "map of a team")
    return [] if data is None else parse(data.decode(errors="replace"), str(path))


class Mapping:
    """The present exports and map. A map that cannot be read fails the calls that need it."""

    def __init__(self, places: TeamPlaces) -> None:
        self._exports = ReadFile(places.exports, places.read_exports)
        self._map = ReadFile(places.map, partial(of_map, places.map))

    @property
    def exports(self) -> Sequence[Export]:
        return self._exports.value()

    @property
    def rows(self) -> Sequence[tuple[str, str]]:
        """Returns the pairs of the map."""
        return self._map.value()

    def user(self, user: str, machine: str) -> str:
        """Returns the name here of a user there, by the map; empty if there is none."""
        return next((here for pattern, here in self.rows if fits(pattern, user, machine)), "")

    def export(self, object_: str, user: str, machine: str) -> Export:
        """Returns the export of an object (`tool/make`) to a user there. Raises EACCES if there is none."""
        for each in self.exports:
            if each.object == object_ and any(fits(pattern, user, machine) for pattern in each.to):
                return each
        raise Fault("EACCES", f"that machine does not export {object_} to {user}@{machine}")

    def as_whom(self, export: Export, user: str, machine: str) -> str:
        """Returns the user that the call runs as here, for a user there. Raises EACCES if none is named."""
        if os.geteuid():
            return pwd.getpwuid(os.geteuid()).pw_name
        if here := export.as_user or self.user(user, machine):
            return here
        raise Fault("EACCES", f"the team.map of that machine names no user for {user}@{machine}")
