"""The control values that users wrote over the defaults.

Rules: a control has a written value, or was removed (and is absent until it is created again), or
neither: then it shows its default. A control that holds keeps its value while it is absent. Each
removal and replacement begins a new incarnation. So writes to a file that was open before have no
effect, as with unlinked files.
This file must never know the meaning of a value, or where it is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from cortexfs.core.registry import Key


class Written(msgspec.Struct, frozen=True, gc=False):
    data: bytes | None  # None: the default counts
    mtime: int
    absent: bool = False


class Values:
    def __init__(self) -> None:
        self.of: dict[Key, dict[str, Written]] = {}
        self._incarnations: dict[tuple[Key, str], int] = {}
        self._first: dict[Key, int] = {}  # the first incarnation for objects that users make and remove
        self._beginnings = itertools.count(1)
        self.refusals: dict[tuple[Key, str], str] = {}  # why the last value was refused, in homes

    def load(self, key: Key, written: Mapping[str, Written]) -> None:
        self.of[key] = dict(written)

    def keys(self) -> tuple[Key, ...]:
        """Returns the objects that have written values."""
        return tuple(self.of)

    def find(self, key: Key, name: str) -> Written | None:
        return self.of.get(key, {}).get(name)

    def is_absent(self, key: Key, name: str) -> bool:
        written = self.find(key, name)
        return written is not None and written.absent

    def incarnation(self, key: Key, name: str) -> int:
        return self._incarnations.get((key, name), self._first.get(key, 0))

    def put(self, key: Key, name: str, data: bytes, now: int) -> None:
        self.of.setdefault(key, {})[name] = Written(data, now)

    def supersede(self, key: Key, name: str) -> None:
        """Begin a new incarnation, as another file has that name now. Writes to open files have no effect."""
        self._incarnations[key, name] = self.incarnation(key, name) + 1

    def remove(self, key: Key, name: str, now: int, *, holds: bool) -> None:
        """Remove the file of a control. The written value still counts if the control holds."""
        self.supersede(key, name)
        before = self.find(key, name)
        self.of.setdefault(key, {})[name] = Written(before.data if before and holds else None, now, True)

    def restore(self, key: Key, name: str, now: int) -> None:
        """Create an absent control again, with the value that counts."""
        written = self.of.get(key, {}).pop(name, None)
        if written and written.data is not None:
            self.put(key, name, written.data, now)

    def reset(self, key: Key, name: str) -> None:
        """Forget the written value, so that the default counts and is shown."""
        self.of.get(key, {}).pop(name, None)

    def drop(self, key: Key, names: Iterable[str]) -> None:
        """Forget an object that is gone, with all its controls. A later object of its name has no values."""
        self.of.pop(key, None)
        first = self._first.pop(key, 0)
        for name in names:
            self.refusals.pop((key, name), None)
            if first:
                self._incarnations.pop((key, name), None)
            else:
                self._incarnations[key, name] = self.incarnation(key, name) + 1

    def begin(self, key: Key) -> None:
        """Note that a user has made this object. If it is removed, no incarnations of it are kept."""
        self._first[key] = next(self._beginnings) << 32  # above all earlier incarnations

    def size(self, key: Key) -> int:
        """Returns how many bytes the written values of an object take."""
        return sum(len(each.data or b"") for each in self.of.get(key, {}).values())
