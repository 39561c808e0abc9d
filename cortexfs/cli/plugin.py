"""`ctx plugin`: which plugins are installed, which are enabled, and what came of them.

Rules: enabling writes plugins.json beside config.toml, never config.toml itself.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from cortexfs import config
from cortexfs.cli import mounts, objects, output, parser, reloading
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.plugins.found import FoundPlugin, found


def declare(into: parser.Parser) -> None:
    verbs = into.add_subparsers(metavar="VERB", required=True, dest="verb")
    for verb, summary in (
        ("list", "list installed and enabled plugins"),
        ("enable", "load a plugin, now and from now on"),
        ("disable", "take a plugin's objects out of the mount"),
    ):
        one = verbs.add_parser(verb, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.root_option(one)
        parser.places_options(one)
        if verb == "list":
            parser.json_option(one)
            parser.examples(one, "ctx plugin list", "ctx plugin list --json")
        else:
            one.add_argument("name", metavar="PLUGIN", help="its name in: ctx plugin list")
            parser.examples(one, f"ctx plugin {verb} notes")
    parser.examples(into, "pip install my-notes && ctx plugin enable notes", "ctx plugin list")


def run(options: argparse.Namespace) -> int:
    where = config.places(os.environ, os.getuid(), state=options.state, config=options.config)
    verbs = {"list": _list, "enable": _enable, "disable": _disable}
    return verbs[options.verb](options, where)


def _enable(options: argparse.Namespace, where: config.Places) -> int:
    offers = {one.plugin.name: one for one in found()}
    if not (offer := offers.get(options.name)):
        hint = parser.nearest(options.name, offers) or "; install its package with pip first"
        raise Fault("ENOENT", f"no installed package offers a plugin {options.name!r}{hint}")
    if offer.fault:
        raise Fault("EINVAL", f"the plugin {options.name} cannot be enabled: {offer.fault}")
    return _choose(options, where, True)


def _disable(options: argparse.Namespace, where: config.Places) -> int:
    known = {one.plugin.name for one in found()} | set(config.enabled(config.load(where)))
    if options.name not in known:
        hint = parser.nearest(options.name, known)
        raise Fault("ENOENT", f"there is no plugin {options.name!r}{hint or '; see: ctx plugin list'}")
    return _choose(options, where, False)


def _choose(options: argparse.Namespace, where: config.Places, on: bool) -> int:
    config.choose(where.config, options.name, on)
    said = reloading.told(options.root, reloading.broken("plugin", options.name, "does not load"))
    output.say(f"{'enabled' if on else 'disabled'} {options.name}; {said}")
    return EXIT_OK


def _list(options: argparse.Namespace, where: config.Places) -> int:
    rows = _rows(found(), config.enabled(config.load(where)), _live(options))
    if options.json:
        output.emit(rows)
    else:
        heads = ("name", "version", "enabled", "status", "tools")
        cells = [
            (r["name"], r["version"], "yes" if r["enabled"] else "no", r["status"], _last(r)) for r in rows
        ]
        output.table(heads, cells)
    return EXIT_OK


def _last(row: dict[str, Any]) -> str:
    return row["reason"] or " ".join(row["tools"]) or "-"


class _Live:
    """What a running daemon made of its plugins: tools by origin, and what is broken."""

    def __init__(self, root: str, text: str) -> None:
        broken = mounts.facts(text).get("broken plugin", [])
        self.broken = dict(line.partition(": ")[::2] for line in broken)
        self.tools: dict[str, list[str]] = {}
        for path in objects.paths_of(root, "tool"):
            listed = objects.listed(root, path)
            self.tools.setdefault(listed.origin, []).append(Path(listed.object).name)


def _live(options: argparse.Namespace) -> _Live | None:
    try:
        root = mounts.root(options.root)
        return _Live(root, mounts.status_text(root))
    except Fault:
        return None  # a listing works without a mount, and says so in its status column


def _rows(offers: list[FoundPlugin], enabled: list[str], live: _Live | None) -> list[dict[str, Any]]:
    rows = [_row(one, one.plugin.name in enabled, live) for one in offers]
    missing = sorted(set(enabled) - {one.plugin.name for one in offers})
    for name in missing:
        reason = "no installed package offers it"
        rows.append(_cells(name, "-", True, "broken", [], reason) | {"distribution": None, "location": None})
    return rows


def _row(one: FoundPlugin, enabled: bool, live: _Live | None) -> dict[str, Any]:
    name, version = one.plugin.name, one.plugin.version
    tools = live.tools.get(f"plugin:{name}@{version}", []) if live else []
    reason = one.fault or (live.broken.get(name) if live and enabled else None)
    status = _status(bool(reason), enabled, bool(tools), live is not None)
    where = {"distribution": one.distribution, "location": one.location}
    return _cells(name, version, enabled, status, tools, reason) | where


def _status(broken: bool, enabled: bool, tools: bool, mounted: bool) -> str:
    if broken:
        return "broken"
    if not enabled:
        return "disabled"
    if not mounted:
        return "not mounted"
    return "loaded" if tools else "no tools"


def _cells(
    name: str, version: str, enabled: bool, status: str, tools: list[str], reason: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "enabled": enabled,
        "status": status,
        "tools": tools,
        "reason": reason,
    }
