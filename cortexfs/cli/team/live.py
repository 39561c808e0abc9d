"""`ctx team status`: the team as this machine sees it, from the report of its daemon's link for commands
(team/status.json).

Rules: a command waits for the report if there is a mount, and never longer than WAIT_SECONDS. A link renews
the time of its report, so a report of an older time is out of date.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import msgspec

from cortexfs.cli import mounts, output, progress, reload
from cortexfs.cli.daemons import places_of
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.peers.ancestry import is_stopped
from cortexfs.state import believed, state_lock
from cortexfs.team.places import TeamPlaces

WAIT_SECONDS = 10.0
STALE_SECONDS = 10.0
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


def link_status(places: TeamPlaces) -> LinkStatus | None:
    """Returns the link's report, or None if no link has written one."""
    try:
        data = believed.content_of(places.status, _MAX_FILE, "the status of a link")
        return None if data is None else msgspec.json.decode(data, type=LinkStatus)
    except (Fault, *UNREADABLE):
        return None


def wait(
    root_option: str | None,
    places: TeamPlaces,
    until: Callable[[LinkStatus], bool] = lambda report: not report.problem,
) -> bool:
    """Wait for the link if a mount has one. Returns True if `until` came true."""
    if not mounts.mounted_at(mounts.root(root_option)):
        return False
    with progress.shown("the link to the team is being made"):
        return reload.until(lambda: bool((found := link_status(places)) and until(found)), WAIT_SECONDS)


def status(options: argparse.Namespace) -> None:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    member = places.read_member()
    with state_lock.unserved(where.state) as is_unserved:
        report = None if is_unserved else link_status(places)  # the report of an ended daemon is out of date
    if report is None:
        why = (
            "no daemon is running here; see: ctx mount" if is_unserved else "no daemon has joined it here yet"
        )
        report = LinkStatus(member.team, member.machine, "", why, {}, {})
    if report.pid:
        for title, pid in (("daemon", state_lock.holder(where.state)), ("link", report.pid)):
            if pid and is_stopped(pid):
                report.problem = f"the {title} (pid {pid}) is stopped; let it go on: kill -CONT {pid}"
        if (age := time.time() - places.status.stat().st_mtime) > STALE_SECONDS:
            why = f"the link (pid {report.pid}) has saved nothing newer; is a disk full? see daemon.log"
            report.problems.insert(0, f"this report is {age:.0f} s old: {why}")
    exports = {each.object: each for each in places.read_exports()}
    if options.json:
        rows = [
            export.as_json | {"problem": report.exports.get(path, "")} for path, export in exports.items()
        ]
        machines = [{"machine": name, "live": is_live} for name, is_live in report.machines.items()]
        facts = msgspec.structs.asdict(report) | {"machines": machines, "exports": rows}
        del facts["pid"]
        return output.emit(facts | {"team": member.team, "machine": member.machine})
    print(f"team: {member.team}")
    print(f"machine: {member.machine}")
    print(f"server: {report.problem or report.server}")
    for text in report.problems:
        print(f"problem: {text}")
    if len(report.servers) > 1:
        until = "" if report.is_cluster else " (the first alone serves, until there are 3)"
        print(f"servers: {', '.join(report.servers)}{until}")
    for name, is_live in report.machines.items():
        print(f"{'live' if is_live or name == member.machine else 'away'}: {name}")
    for path, export in exports.items():
        why = f" (not now: {report.exports[path]})" if report.exports.get(path) else ""
        print(f"export: {path} to {' '.join(export.to)}{why}")
