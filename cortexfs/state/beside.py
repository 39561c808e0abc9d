"""The folders beside a daemon's state, which lie there as others than the daemon have to come to them.

This file must never know what is in them.
"""

from __future__ import annotations

from pathlib import Path


def place_of(state: Path) -> Path:
    """Copies of plugins. Hosts that are somebody else, or an agent's, cannot pass through the state."""
    return state.with_name(f"{state.name}-plugins")


def kept_of(state: Path) -> Path:
    """Where plugins keep what outlives their hosts, a directory for each of their users."""
    return state.with_name(f"{state.name}-kept")
