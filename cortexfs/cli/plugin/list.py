"""`ctx plugin list` and `trust`: all plugins with their state in the mount, and the trusted publishers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import config
from cortexfs.cli import output, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.plugin.live import LivePlugins, live_of, status_of
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import counted
from cortexfs.plugins.install.entry_points import found
from cortexfs.state import directories

if TYPE_CHECKING:
    from cortexfs.core.manifest.governance import Mechanism
    from cortexfs.core.manifest.toml import Manifest

HEADS = ("name", "version", "boundary", "enabled", "status", "publisher", "tools")


def listing(options: argparse.Namespace) -> None:
    rows = _rows(places_of(options), live_of(options))
    output.print_rows(options.json, rows, HEADS, (_cells(row) for row in rows))


def trust(options: argparse.Namespace) -> None:
    from cortexfs.plugins.trust.trust import TrustStore

    store = TrustStore(places_of(options).state)
    if options.action == "remove":
        if not options.publisher:
            raise Fault("EINVAL", "name the publisher; see: ctx plugin trust list")
        count = store.remove(options.publisher, options.fingerprint)
        sentence = reload.tell(options.root)
        return output.say(f"{options.publisher} is no longer trusted ({counted(count, 'key')}); {sentence}")
    known = store.read()
    heads = ("publisher", "key", "trusted since")
    rows = ((key.publisher_id, key.fingerprint_sha256, key.trusted_at) for key in known)
    output.print_rows(options.json, msgspec.to_builtins(known), heads, rows)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    wrong = f"(cannot be called: {row['wrong']})" if row["wrong"] else ""
    others = (*map("(model {})".format, row["models"]), *map("(cortex {})".format, row["commands"]))
    return row | {
        "enabled": "yes" if row["enabled"] else "no",
        "publisher": row["publisher"] or "-",
        "tools": row["reason"] or " ".join(filter(None, [*row["tools"], *others, wrong])) or "-",
    }


def _rows(where: directories.Places, live: LivePlugins | None) -> list[dict[str, Any]]:
    enabled = config.enabled(config.load(where))
    rows = []
    for entry in found():
        plugin = entry.plugin
        row = _row(plugin.name, plugin.version, "python", plugin.name in enabled, entry.fault, live)
        rows.append(row | {"distribution": entry.distribution, "location": entry.location})
    rows += _installed(where.state, enabled, live)
    known = {row["name"] for row in rows}
    for name in enabled:
        if name not in known:  # enabled, and not visible to this user
            version = live.versions.get(name) if live else None
            fault = None if version else "it is not installed, or you may not read it"
            rows.append(_row(name, version or "-", "-", True, fault, live))
    return sorted(rows, key=lambda row: str(row["name"]))


def _installed(state: Path, enabled: list[str], live: LivePlugins | None) -> list[dict[str, Any]]:
    if not os.path.exists(state / directories.PLUGINS):  # or this user may not look there
        return []
    from cortexfs.plugins.package import directory  # half of the import time of this command

    if not (folders := directory.folders(state / directories.PLUGINS)):
        return []
    from cortexfs.linux import kernel_support

    available = kernel_support.available()
    return [_installed_row(folder, folder.name in enabled, live, available) for folder in folders]


def _installed_row(
    folder: Path, enabled: bool, live: LivePlugins | None, available: frozenset[Mechanism]
) -> dict[str, Any]:
    from cortexfs.plugins.package import directory, records

    fault, publisher, version, boundary = None, "", "-", "-"
    try:
        manifest = directory.read(folder)
        version, boundary = manifest.version, boundary_of(manifest)
        directory.check(manifest, available)
        publisher = records.read(folder).publisher
    except Fault as problem:
        fault = problem.message
    row = _row(folder.name, version, boundary, enabled, fault, live)
    return row | {"publisher": publisher, "location": str(folder)}


def boundary_of(manifest: Manifest) -> str:
    """Returns the kind of boundary between a plugin's code and the rest."""
    from cortexfs.plugins.package import manifests

    if manifests.is_json(manifest):
        return manifest.json.kind
    if manifest.python:
        return "python"
    return "native" if manifest.native and manifest.native.isolation != "process" else "process"


def _row(
    name: str, version: str, boundary: str, enabled: bool, fault: str | None, live: LivePlugins | None
) -> dict[str, Any]:
    tools, models, commands = (
        (live.tools.get(name, []), live.models.get(name, []), live.commands.get(name, []))
        if live
        else ([], [], [])
    )
    serves = bool(tools or models or commands or (live and name in live.hooks))
    reason = fault or (live.broken.get(name) if live and enabled else None)
    return {
        "name": name,
        "version": version,
        "boundary": boundary,
        "enabled": enabled,
        "status": status_of(bool(reason), enabled, serves, live is not None),
        "tools": tools,
        "models": models,
        "commands": commands,
        "reason": reason,
        "wrong": live.wrong.get(name) if live and enabled else None,
        "publisher": "",
        "distribution": None,
        "location": None,
    }
