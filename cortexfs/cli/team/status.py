"""`ctx team status`: the team as this machine sees it."""

from __future__ import annotations

import argparse

from cortexfs.cli import output
from cortexfs.cli.daemons import places_of
from cortexfs.cli.team import live
from cortexfs.core.errors import EXIT_OK
from cortexfs.team.places import TeamPlaces


def status(options: argparse.Namespace) -> int:
    where = places_of(options)
    places = TeamPlaces(where.state, where.config)
    member, said = places.read_member(), live.status(places)
    machines = {} if said is None else said.machines
    problem = "no daemon has joined it here yet; see: ctx mount" if said is None else said.problem
    exports = {each.object: each for each in places.read_exports()}
    faults = {} if said is None else said.exports
    if options.json:
        rows = [
            {
                "object": path,
                "to": one.to,
                "as": one.as_user,
                "agents": one.agents,
                "problem": faults.get(path, ""),
            }
            for path, one in exports.items()
        ]
        output.emit(
            {
                "team": member.team,
                "machine": member.machine,
                "server": said.server if said else "",
                "servers": said.servers if said else [],
                "is_cluster": said is not None and said.is_cluster,
                "problem": problem,
                "machines": [{"machine": name, "live": there} for name, there in machines.items()],
                "exports": rows,
            }
        )
        return EXIT_OK
    print(f"team: {member.team}")
    print(f"machine: {member.machine}")
    print(f"server: {problem or (said.server if said else '')}")
    if said and len(said.servers) > 1:
        until = "" if said.is_cluster else " (the first alone serves, until there are 3)"
        print(f"servers: {', '.join(said.servers)}{until}")
    for name, there in machines.items():
        print(f"{'live' if there else 'away'}: {name}")
    for path, one in exports.items():
        why = f" (not now: {faults[path]})" if faults.get(path) else ""
        print(f"export: {path} to {' '.join(one.to)}{why}")
    for text in said.problems if said else []:
        print(f"problem: {text}")
    return EXIT_OK
