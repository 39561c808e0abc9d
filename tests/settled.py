"""Waiting until sessions have nothing left to do."""

from __future__ import annotations

from cortexfs.sessions.store import Sessions
from tests.waiting import awaited


async def settled(sessions: Sessions) -> None:
    """Wait until all appended events are in the log files, and the files beside the logs are up to date."""
    commit = sessions._commit

    def is_at_work() -> bool:
        queued = commit._unwritten or commit._unsynced or commit._writing.locked() or commit.beside.is_behind
        return bool(queued) or any(log.syncing and not log.ended for log in commit._in_use)

    await awaited(is_at_work, lambda is_so: not is_so)
