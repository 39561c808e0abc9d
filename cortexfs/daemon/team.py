"""The daemon's part in a team of machines, from the moment that it has one (team/remote_objects.py).

Rules: a daemon whose machine is in no team imports nothing of it, and starts nothing.
This file must never know how machines find each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from cortexfs.core.registry import Key, Object

if TYPE_CHECKING:
    from cortexfs.daemon.daemon import Daemon
    from cortexfs.team.remote_objects import RemoteObjects

ORIGIN = "machine:"


class Team:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._remote: RemoteObjects | None = None
        self._asked = trio.Event()

    @property
    def is_joined(self) -> bool:
        return (self._daemon.config.state / "team" / "member.json").exists()

    def again(self) -> None:
        """The configuration was read again."""
        self._asked.set()
        if self._remote is not None:
            self._remote.again()

    def joined(self, objects: Mapping[Key, Object]) -> dict[Key, Object]:
        """These objects with those of other machines, which take no name that there is here."""
        if self._remote is None:
            return dict(objects)
        local = {key: one for key, one in objects.items() if not one.origin.startswith(ORIGIN)}
        return self._remote.objects | local

    async def run(self) -> None:
        """For ever; it waits while the machine is in no team."""
        while not self.is_joined:
            self._asked = trio.Event()
            await self._asked.wait()
        from cortexfs.team.places import TeamPlaces
        from cortexfs.team.remote_objects import RemoteObjects

        daemon = self._daemon
        places = TeamPlaces(daemon.config.state, daemon.config.directory)
        changed = daemon.reload.show_own
        self._remote = RemoteObjects(daemon.starter, daemon.pool.pairs, places, changed)
        daemon.pool.remote = self._remote.host
        await self._remote.run()
