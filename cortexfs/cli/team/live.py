"""`ctx team status`: the team as this machine sees it, from the report of its daemon's link for commands
(team/status.json).

Rules: a command waits for the report if there is a mount, and never longer than WAIT_SECONDS.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import msgspec

from cortexfs.cli import mounts, output, progress
from cortexfs.cli.daemons import places_of
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.peers.ancestry import is_stopped
from cortexfs.state import believed, state_lock
from cortexfs.team.places import TeamPlaces

WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05
_MAX_FILE = 4 << 20


class LinkStatus(msgspec.Struct):
    """The content of team/status.json."""

    team: str
    machine: str
    server: str
    problem: str
    machines: dict[str, bool]
    exports: dict[str, str]  # by path: the fault, or an empty text
    problems: list[str] = []
    servers: list[str] = []
    is_cluster: bool = False
    pid: int = 0


def heard(places: TeamPlaces) -> LinkStatus | None:
    """Returns the link's report, or None if no link has written one."""
    try:
        said = believed.whole(places.status, _MAX_FILE, "the status of a link")
        return None if said is None else msgspec.json.decode(said, type=LinkStatus)
    except (Fault, *UNREADABLE):
        return None


def wait(
    given: str | None, places: TeamPlaces, until: Callable[[LinkStatus], bool] = lambda said: not said.problem
) -> bool:
    """Wait for the link if a mount has one. Returns True if `until` came true."""
    if not mounts.mounted_at(mounts.root(given)):
        return False
    end = time.monotonic() + WAIT_SECONDS
    with progress.shown("the link to the team is being made"):
        while time.monotonic() < end:
            said = heard(places)
            if said is not None and until(said):
                return True
            time.sleep(_POLL_SECONDS)
    return False


def status(options: argparse.Namespace) -> int:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    member = places.read_member()
    with state_lock.unserved(where.state) as is_unserved:
        said = None if is_unserved else heard(places)  # the report of an ended daemon is out of date
    if said is None:
        why = (
            "no daemon is running here; see: ctx mount" if is_unserved else "no daemon has joined it here yet"
        )
        said = LinkStatus(member.team, member.machine, "", why, {}, {})
    if said.pid and is_stopped(said.pid):
        said.problem = f"the link (pid {said.pid}) is stopped; let it go on: kill -CONT {said.pid}"
    exports = {each.object: each for each in places.read_exports()}
    if options.json:
        rows = [one.shown | {"problem": said.exports.get(path, "")} for path, one in exports.items()]
        output.emit(
            {
                "team": member.team,
                "machine": member.machine,
                "server": said.server,
                "servers": said.servers,
                "is_cluster": said.is_cluster,
                "problem": said.problem,
                "machines": [{"machine": name, "live": there} for name, there in said.machines.items()],
                "exports": rows,
            }
        )
        return EXIT_OK
    print(f"team: {member.team}")
    print(f"machine: {member.machine}")
    print(f"server: {said.problem or said.server}")
    if len(said.servers) > 1:
        until = "" if said.is_cluster else " (the first alone serves, until there are 3)"
        print(f"servers: {', '.join(said.servers)}{until}")
    for name, there in said.machines.items():
        print(f"{'live' if there or name == member.machine else 'away'}: {name}")
    for path, one in exports.items():
        why = f" (not now: {said.exports[path]})" if said.exports.get(path) else ""
        print(f"export: {path} to {' '.join(one.to)}{why}")
    for text in said.problems:
        print(f"problem: {text}")
    return EXIT_OK
