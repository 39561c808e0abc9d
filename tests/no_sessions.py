"""A session store that never has a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.sessions.layout import Address
from cortexfs.sessions.store import Sessions


class NoSessions(Sessions):
    def __init__(self) -> None:
        self.root = Path("/dev/null")  # an empty place

    def visible(self, address: Address) -> int | None:
        return None

    async def freshen(self, parts: tuple[str, ...]) -> None:
        pass

    async def ordered(self, sessions: tuple[str, ...]) -> None:
        pass

    async def discard(self, work: Callable[[], None]) -> None:
        work()

    async def remove(self, address: Address) -> None:
        raise Fault("ENOENT", "there are no sessions here")
