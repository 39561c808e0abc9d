"""The setup of an agent, from its `.d/`, and the setups with which the runs that go on began.

    begun = Begun()
    with begun.run(uid, setup): ...
    begun.of(uid, "agent/coder")        its setups when the runs of this user that go on began

This file must never know where controls come from, or what is decided by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from cortexfs.core.policy.rules import Rule


class Setup(NamedTuple):
    """The controls of an agent, parsed."""

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
    created: float  # the time of its creation: a later agent of the same name is another

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
        """Returns the setups of this user's runs that go on, each different one once."""
        found: list[Setup] = []
        for setup in self._runs.get((uid, place), ()):
            if setup not in found:
                found.append(setup)
        return tuple(found)
