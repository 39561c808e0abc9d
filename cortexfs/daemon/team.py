"""The daemon's part in a team of machines, once its machine is in one (team/remote_objects.py).

Rules: a daemon whose machine is in no team imports and starts nothing of the team's code.
This file must never know how machines find each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from cortexfs.core.names import REMOTE
from cortexfs.core.registry import Key, Object

if TYPE_CHECKING:
    from cortexfs.daemon.daemon import Daemon
    from cortexfs.daemon.team_sessions import TeamSessions
    from cortexfs.sessions.layout import Address
    from cortexfs.team.remote_objects import RemoteObjects


class Team:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._remote: RemoteObjects | None = None
        self._sessions: TeamSessions | None = None
        self._wake = trio.Event()
        if self.is_joined:  # this must come before any session is opened
            self._join_sessions()

    @property
    def is_joined(self) -> bool:
        return (self._daemon.config.state / "team" / "member.json").exists()

    def again(self) -> None:
        """Check the team again, after the configuration was read again."""
        self._wake.set()
        if self._remote is not None:
            self._remote.again()

    def joined(self, objects: Mapping[Key, Object]) -> dict[Key, Object]:
        """Returns these objects and other machines' objects; on the same name, the object here wins."""
        if self._remote is None:
            return dict(objects)
        local = {key: object_ for key, object_ in objects.items() if not object_.origin.startswith(REMOTE)}
        return self._remote.objects | local

    async def run(self) -> None:
        """Runs for ever. Waits while the machine is in no team."""
        while not self.is_joined:
            self._wake = trio.Event()
            await self._wake.wait()
        from cortexfs.run import remote_agent
        from cortexfs.team.remote_objects import RemoteObjects

        daemon = self._daemon
        daemon.drivers.remote_agent = lambda agent: partial(remote_agent.answer, daemon.pool, agent)
        sessions = self._sessions or self._join_sessions()
        changed = daemon.reload.show_own
        self._remote = RemoteObjects(
            daemon.starter, daemon.pool.pairs, sessions.places, changed, sessions.serve
        )
        daemon.pool.remote = self._remote.host
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.give_up)
            await self._remote.run()

    def _join_sessions(self) -> TeamSessions:
        from cortexfs.daemon.team_sessions import TeamSessions
        from cortexfs.team.places import TeamPlaces

        daemon = self._daemon
        places = TeamPlaces(daemon.config.state, daemon.config.directory)
        found = self._sessions = TeamSessions(places, daemon.sessions, daemon.conversations)
        daemon.sessions.opened = found.judge
        daemon.conversations.team = found
        return found

    def removed(self, address: Address) -> None:
        if self._sessions is not None:
            self._sessions.removed(address)
