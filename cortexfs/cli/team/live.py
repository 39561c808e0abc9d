"""The word of a running daemon's link about itself, for commands: team/status.json.

Rules: a command waits for it where there is a mount, and never for longer than WAIT_SECONDS.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from cortexfs.cli import mounts, progress
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.state import believed
from cortexfs.team.places import TeamPlaces

WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05
_MAX_FILE = 4 << 20


class LinkStatus(msgspec.Struct):
    """The words of team/status.json."""

    team: str
    machine: str
    server: str
    problem: str
    machines: dict[str, bool]
    exports: dict[str, str]  # by path: what is wrong, if anything
    problems: list[str] = []
    servers: list[str] = []
    is_cluster: bool = False


def status(places: TeamPlaces) -> LinkStatus | None:
    """None where no link has written it."""
    try:
        said = believed.whole(places.status, _MAX_FILE, "the status of a link")
        return None if said is None else msgspec.json.decode(said, type=LinkStatus)
    except (Fault, *UNREADABLE):
        return None


def wait(
    given: str | None, places: TeamPlaces, until: Callable[[LinkStatus], bool] = lambda said: not said.problem
) -> bool:
    """Wait for the link, where there is a mount that has one; returns whether it came to that."""
    if not mounts.mounted_at(mounts.root(given)):
        return False
    end = time.monotonic() + WAIT_SECONDS
    with progress.shown("the link to the team is being made"):
        while time.monotonic() < end:
            said = status(places)
            if said is not None and until(said):
                return True
            time.sleep(_POLL_SECONDS)
    return False
