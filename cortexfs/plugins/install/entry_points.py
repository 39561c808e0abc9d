"""The installed Python plugins, which are found without an import of their code.

A distribution offers a plugin by an entry point of the group `cortexfs.plugins`:

    [project.entry-points."cortexfs.plugins"]
    notes = "my_notes.plugin:plugin"

Rules: only metadata is read; plugins are sorted by name, never in the order of the disk. A name that
two distributions offer belongs to neither, so that an installed package cannot replace an enabled
plugin. A broken plugin is listed with the reason and never left out.
This file must never know the enabled plugins, nor a host.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cortexfs.core import names
from cortexfs.core.hostcalls import Plugin

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "cortexfs.plugins"
METADATA = (".dist-info", "egg-info")  # the ends of the names of folders with metadata
_NAME = r"(?im)^Name:[ \t]*(\S+)"
_TARGET = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*"


class FoundPlugin(NamedTuple):
    plugin: Plugin
    distribution: str
    location: str  # the directory that the distribution is installed in
    fault: str | None = None  # the reason why it cannot be loaded, as a sentence


def found(path: list[str] | None = None) -> list[FoundPlugin]:
    """Returns all plugins on `path` (default: sys.path), sorted by name and distribution."""
    path = sys.path if path is None else path
    if not any(map(_may_offer, path)):
        return []
    from importlib import metadata  # this import takes as long as the check above of 100 packages

    search = metadata.distributions(path=path)
    every = [offer for distribution in _unshadowed(search) for offer in _offers(distribution)]
    every.sort(key=lambda entry: (entry.plugin.name, entry.distribution))
    owners: dict[str, list[str]] = {}
    for entry in every:
        owners.setdefault(entry.plugin.name, []).append(entry.distribution)
    return [
        entry if len(owners[entry.plugin.name]) == 1 else entry._replace(fault=_dispute(entry, owners))
        for entry in every
    ]


def _may_offer(place: str) -> bool:
    """Returns True if a place of the path may have a package that offers a plugin. An archive always may."""
    try:
        names = os.listdir(place or ".")
    except FileNotFoundError:  # such as the archive of Python's own modules, which is on each path
        return False
    except OSError:  # it may be an archive
        return True
    return any(_mentions(f"{place or '.'}/{name}") for name in names if name.lower().endswith(METADATA))


def _mentions(package: str) -> bool:
    with suppress(OSError), open(f"{package}/entry_points.txt", "rb") as file:
        return GROUP.encode() in file.read()
    return False


def _unshadowed(search: Iterable[metadata.Distribution]) -> Iterable[metadata.Distribution]:
    """Yields each distribution once: the first on the path, which an import finds."""
    seen: set[str] = set()
    for distribution in search:
        name = re.sub(r"[-_.]+", "-", _name(distribution)).lower()
        if name and name not in seen:
            seen.add(name)
            yield distribution


def _name(distribution: metadata.Distribution) -> str:
    """Returns a distribution's name, or "" for a directory without readable metadata, which is no package.
    The rest is not parsed, as that takes four times as long, for each installed package."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
    match = re.search(_NAME, (text or distribution.read_text("") or "").partition("\n\n")[0])
    return match[1] if match else ""


def _offers(distribution: metadata.Distribution) -> Iterable[FoundPlugin]:
    for point in distribution.entry_points:
        if point.group == GROUP:
            plugin = Plugin(point.name, distribution.version, "python", point.value.partition("[")[0].strip())
            location = str(distribution.locate_file(""))
            yield FoundPlugin(plugin, distribution.metadata["Name"], location, _fault(plugin))


def _fault(plugin: Plugin) -> str | None:
    if broken := names.fault_of(plugin.name):
        return f"the name {plugin.name!r} {broken}"
    if not re.fullmatch(_TARGET, plugin.target):
        return f"its entry point {plugin.target!r} is not of the form module:attribute"
    return None


def _dispute(entry: FoundPlugin, owners: dict[str, list[str]]) -> str:
    sources = ", ".join(owners[entry.plugin.name])
    return f"the name {entry.plugin.name} is offered more than once, by {sources}; uninstall all but one"
