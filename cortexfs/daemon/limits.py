"""The limits of a daemon's parts, from the configuration and from the kernel.

This file must never know how a part keeps to its limits.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
from contextlib import suppress

import trio

from cortexfs.config import Config
from cortexfs.run.listener import ExecTerms
from cortexfs.sessions.layout import spaces
from cortexfs.sessions.log import Most
from cortexfs.sessions.store import Policy, SessionLimits, Sessions

DESCRIPTORS = 65536
SPARE = 512  # of these, for all that is neither a connection nor a session
# A run has four and a client of a socket has one, but no three users have more than three quarters of each.
PER_CONNECTION = 4
TABLE = 4096  # of these, the descriptors that have room from the start
DAY = 86400.0
RETAIN_SECONDS = 3600.0

log = logging.getLogger("cortexfs")


def of_exec(config: Config, connections: int) -> ExecTerms:
    seconds, limits = float(config.turn.tool_timeout_secs), config.limits
    sandboxed = config.callers.serve_sandboxed
    return ExecTerms(seconds, limits.output_gib << 30, connections, limits.depth, sandboxed)


def most(config: Config) -> Most:
    settings = config.sessions
    return Most(settings.session_mib << 20, settings.user_mib << 20, settings.user_sessions)


async def retain(sessions: Sessions, config: Config) -> None:
    """Once an hour, remove the sessions that are too old or too many by the configuration. Returns at once
    if all are kept."""
    settings = config.sessions
    policy = Policy(settings.unused_days * DAY or None, settings.per_object or None, frozenset(settings.kept))
    while policy.age or policy.count:
        for space in await trio.to_thread.run_sync(spaces, sessions.root):
            await sessions.collect(await sessions.expired(space, policy))
        await trio.sleep(RETAIN_SECONDS)


def connections(wanted: int) -> int:
    """Raise our limit of descriptors. Returns the number of connections of each kind, runs and clients, for
    which it suffices: `wanted` or less. Call this after the fork server has started, as hosts have limits of
    their own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    sessions = SessionLimits().descriptors
    needed = wanted * PER_CONNECTION + sessions + SPARE
    limit = max(DESCRIPTORS, needed)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    # Grow the table while there is one thread: with more, the kernel blocks the growing one for 20 ms.
    with suppress(OSError):
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, min(TABLE, limit) - 1))
    found = max(1, (limit - min(sessions, limit // 4) - SPARE) // PER_CONNECTION)
    if found < wanted:
        why = f"{wanted} would need {needed} descriptors, and the hard limit is {limit}"
        log.warning("limits.connections is %d here, as %s", found, why)
    return min(found, wanted)
