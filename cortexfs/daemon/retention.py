"""Sessions that are removed by themselves: those that the configuration calls too old, or too many.

This file must never know what is in a session.
"""

from __future__ import annotations

import trio

from cortexfs.config import SessionSettings as Terms
from cortexfs.sessions.layout import spaces
from cortexfs.sessions.store import Policy, Sessions

DAY = 86400.0
RETAIN_SECONDS = 3600.0


async def retain(sessions: Sessions, terms: Terms) -> None:
    """Remove them, once an hour; returns at once where all are kept."""
    policy = Policy(terms.unused_days * DAY or None, terms.per_object or None, frozenset(terms.kept))
    while policy.age or policy.count:
        for space in await trio.to_thread.run_sync(spaces, sessions.root):
            await sessions.collect(await sessions.expired(space, policy))
        await trio.sleep(RETAIN_SECONDS)
