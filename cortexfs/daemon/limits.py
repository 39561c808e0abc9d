"""The limits of a daemon's parts: the configuration as they want it, and what the kernel lets it have.

This file must never know a part.
"""

from __future__ import annotations

import resource

from cortexfs.config import Config
from cortexfs.sessions.log import Most

DESCRIPTORS = 16384  # a thousand clients, as many sessions, and calls


class ExecSettings:
    """As exec wants it."""

    def __init__(self, config: Config, connections: int) -> None:
        self.tool_timeout = float(config.turn.tool_timeout_secs)
        self.output_bytes = config.limits.output_gib << 30
        self.connections = connections
        self.depth = config.limits.depth
        self.serve_sandboxed = config.callers.serve_sandboxed


def most(config: Config) -> Most:
    """As sessions want it."""
    said = config.sessions
    return Most(said.session_mib << 20, said.user_mib << 20, said.user_sessions)


def raise_descriptors() -> int:
    """After the fork server has started, as hosts have limits of their own; how many we may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted
