"""An agent as its `.d/` says, and what the agents of the runs that are going on began with.

    begun = Begun()
    with begun.run(uid, setup): ...
    begun.of(uid, "agent/coder")        as they were when runs of this user began that are not over

This file must never know where controls come from, or what is decided by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from cortexfs.core.policy.rules import Rule


class Setup(NamedTuple):
    """An agent, as its controls say."""

    name: str
    place: str  # in the tree: agent/coder, home/1000/agent/mine
    home: int | None
    label: str  # its type: coder_t
    rules: tuple[Rule, ...]
    model: str
    system: str
    tools: tuple[str, ...]
    skills: tuple[str, ...]
    mounts: str
    cwd: str
    window: int | None
    asks: bool
    env: dict[str, str]
    groups: frozenset[int]
    path: tuple[str, ...]
    made: float  # when: one of the same name that was made since is another

    @property
    def file(self) -> str:
        return f"{self.place}.d/policy"


class Begun:
    def __init__(self) -> None:
        self._runs: dict[tuple[int, str], list[Setup]] = {}

    @contextlib.contextmanager
    def run(self, uid: int, setup: Setup) -> Iterator[None]:
        runs = self._runs.setdefault((uid, setup.place), [])
        runs.append(setup)
        try:
            yield
        finally:
            runs.remove(setup)
            if not runs:
                self._runs.pop((uid, setup.place), None)

    def of(self, uid: int, place: str) -> tuple[Setup, ...]:
        """Each different one once."""
        found: list[Setup] = []
        for one in self._runs.get((uid, place), ()):
            if one not in found:
                found.append(one)
        return tuple(found)
