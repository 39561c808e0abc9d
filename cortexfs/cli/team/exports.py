"""`ctx team export`: the objects that other machines may call here, and the users as whom they run.

Rules: an object is exported to the named users and machines. `--as` or team.map maps each of them to a user
here. A caller without a user here is refused.
"""

from __future__ import annotations

import argparse
import os
import pwd
from pathlib import Path

from cortexfs.cli import mounts, output
from cortexfs.cli.daemons import places_of
from cortexfs.cli.team import live
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.registry import key_of
from cortexfs.team import mapping, messages
from cortexfs.team.exporting import check_no_alias
from cortexfs.team.places import Export, TeamPlaces, written


def export(options: argparse.Namespace) -> None:
    places = TeamPlaces(*places_of(options))
    member, exports = places.read_member(), places.read_exports()
    if options.exported is None:
        if options.to or options.as_user or options.agents or options.stop:
            raise Fault("EINVAL", "say which OBJECT, such as tool/make; see: ctx team export --help")
        heads = ("object", "to", "as", "agents")
        rows = (
            (entry.object, " ".join(entry.to), entry.as_user or "-", entry.agents or "-") for entry in exports
        )
        return output.print_rows(options.json, [entry.as_json for entry in exports], heads, rows)
    path = options.exported.strip("/")
    others = [each for each in exports if each.object != path]
    if options.stop:
        if len(others) == len(exports):
            raise Fault("ENOENT", f"{path} is not exported; see: ctx team export")
        written(places.exports, others)
        return output.say(f"stopped exporting {path}")
    addition = _export(path, options, member.machine)
    written(places.exports, [*others, addition])
    for former in exports:
        if former.object == path and not {*former.to} <= {*addition.to}:
            output.say(
                f"this replaces the export of {path} to {' '.join(former.to)}; one command names all users"
            )
    for who in _unmapped(addition, places):
        output.say(
            f"no line of {places.map} names a user for {who}, so the call is EACCES; write one, or --as"
        )
    if link_status := live.link_status(places):
        for machine in {each.partition("@")[2] for each in addition.to} - {"*", *link_status.machines}:
            output.say(f"{machine} is no machine of the team yet; see: ctx team status")
    output.say(
        f"exported {path} to {' '.join(addition.to)}; there it is {_remote_path(path, member.machine)}"
    )


def _export(path: str, options: argparse.Namespace, machine: str) -> Export:
    class_, _ = key_of(path)
    if class_ not in messages.CLASSES:
        kinds = " or ".join(f"{each}/NAME" for each in messages.CLASSES)
        raise Fault("EINVAL", f"{path!r} cannot be exported; write {kinds}")
    root = mounts.root(options.root)
    check_no_alias(Path(root), path)
    _remote_path(path, machine)
    if mounts.mounted_at(root) and not Path(root, path).is_file():
        raise Fault("ENOENT", f"there is no {path} at {root}; see: ctx ls {class_}")
    if not options.to:
        raise Fault("EINVAL", "say who may call it: --to USER@MACHINE")
    if options.as_user:
        _check_user(options.as_user)
    to = [mapping.check_who(each) for each in options.to]
    return Export(path, to, options.as_user or "", _agent(options.agents, root))


def _unmapped(export: Export, places: TeamPlaces) -> list[str]:
    """Returns those of the callers as whom nothing would run here."""
    if export.as_user or os.geteuid():
        return []
    map_ = mapping.Mapping(places)
    return [each for each in export.to if not ("*" in each and map_.rows) and not map_.user(*each.split("@"))]


def _agent(name: str | None, root: str) -> str:
    """Returns the path of the agent whose policy decides."""
    if not name:
        return ""
    path = f"agent/{names.check(name.removeprefix('agent/'))}"
    if mounts.mounted_at(root) and not Path(root, path).is_file():
        raise Fault("ENOENT", f"there is no {path} at {root}; see: ctx agent new --help")
    return path


def _check_user(name: str) -> None:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Fault("EINVAL", f"there is no user {name} here") from None
    if os.geteuid() not in (0, user.pw_uid):
        raise Fault("EACCES", "a daemon of yours exports as you alone; leave out --as")


def _remote_path(path: str, machine: str) -> str:
    class_, name = key_of(path)
    return f"{class_}/{messages.shown_name(class_, name, machine)}"
