"""The finding of a check of `ctx doctor`, and the mount that the checks are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from cortexfs.state.directories import Places

OK, WARN, FAIL = "ok", "warn", "fail"


class Subject(NamedTuple):
    root: str
    where: Places
    uid: int


class Finding(NamedTuple):
    level: str
    why: str  # the finding
    mend: str = ""  # the advice
    fix: tuple[str, ...] = ()  # the command that follows the advice, if there is one
    by_root: bool = False  # True if root has to run the command

    @property
    def text(self) -> str:
        return f"{self.why}{f'; {self.mend}' if self.mend else ''}"


Check: TypeAlias = Callable[[Subject], Finding]


ok, warn, fail = partial(Finding, OK), partial(Finding, WARN), partial(Finding, FAIL)
