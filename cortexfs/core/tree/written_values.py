"""The control values that people wrote over the defaults.

Rules: a control has a written value, or was removed (and is absent until it is created again), or
neither: then its default is shown. A control that holds keeps its value while it is absent. Each
removal and replacement begins a new incarnation, so that a file that was open across it writes into
nothing, as unlinked files do.
This file must never know what a value means, or where it is kept.
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
        self._begun: dict[Key, int] = {}  # the first incarnation of what users make and remove
        self._beginnings = itertools.count(1)

    def load(self, key: Key, written: Mapping[str, Written]) -> None:
        self.of[key] = dict(written)

    def keys(self) -> tuple[Key, ...]:
        """The objects for which something was written."""
        return tuple(self.of)

    def find(self, key: Key, name: str) -> Written | None:
        return self.of.get(key, {}).get(name)

    def is_absent(self, key: Key, name: str) -> bool:
        written = self.find(key, name)
        return written is not None and written.absent

    def incarnation(self, key: Key, name: str) -> int:
        return self._incarnations.get((key, name), self._begun.get(key, 0))

    def put(self, key: Key, name: str, data: bytes, now: int) -> None:
        self.of.setdefault(key, {})[name] = Written(data, now)

    def supersede(self, key: Key, name: str) -> None:
        """Another file stands there from now on, so what is open writes into nothing."""
        self._incarnations[key, name] = self.incarnation(key, name) + 1

    def remove(self, key: Key, name: str, now: int, *, holds: bool) -> None:
        """No file stands there from now on. What was written counts still, if the control holds."""
        self.supersede(key, name)
        before = self.find(key, name)
        self.of.setdefault(key, {})[name] = Written(before.data if before and holds else None, now, True)

    def restore(self, key: Key, name: str, now: int) -> None:
        """An absent control is created again, with what counts."""
        written = self.of.get(key, {}).pop(name, None)
        if written and written.data is not None:
            self.put(key, name, written.data, now)

    def reset(self, key: Key, name: str) -> None:
        """The default counts and is shown."""
        self.of.get(key, {}).pop(name, None)

    def drop(self, key: Key, names: Iterable[str]) -> None:
        """The object has gone, with all its controls: one of its name starts afresh."""
        self.of.pop(key, None)
        begun = self._begun.pop(key, 0)
        for name in names:
            if begun:
                self._incarnations.pop((key, name), None)
            else:
                self._incarnations[key, name] = self.incarnation(key, name) + 1

    def begin(self, key: Key) -> None:
        """A user has made this object, and may remove it: nothing of it is remembered then."""
        self._begun[key] = next(self._beginnings) << 32  # out of reach of the incarnations before

    def size(self, key: Key) -> int:
        """How many bytes were written for an object."""
        return sum(len(one.data or b"") for one in self.of.get(key, {}).values())
