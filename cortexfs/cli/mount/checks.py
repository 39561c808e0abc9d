"""The argument and the answer of a check of `ctx doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cortexfs.state.directories import Places

OK, WARN, FAIL = "ok", "warn", "fail"


class Subject(NamedTuple):
    root: str
    where: Places
    uid: int


class Finding(NamedTuple):
    level: str
    why: str  # what was found
    mend: str = ""  # what to do about it

    @property
    def told(self) -> str:
        return f"{self.why}{f'; {self.mend}' if self.mend else ''}"


Check: TypeAlias = Callable[[Subject], Finding]


def ok(why: str) -> Finding:
    return Finding(OK, why)


def warn(why: str, mend: str) -> Finding:
    return Finding(WARN, why, mend)


def fail(why: str, mend: str) -> Finding:
    return Finding(FAIL, why, mend)
