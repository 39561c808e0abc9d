"""`ctx plugin permissions`: what a plugin with a manifest.json may do, and why.

Rules: what counts is declared - denied + granted (abi.md 9.26). One word is decided once for a plugin.
"""

from __future__ import annotations

import argparse
import ipaddress
from typing import cast

from msgspec.structs import replace

from cortexfs.cli import output
from cortexfs.cli.plugin.decided import decide, manifest_of
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifestjson import capabilities
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.plugins import json_kinds
from cortexfs.plugins.install.decisions import Chosen, Decision, DecisionStore
from cortexfs.state import directories

HEADS = ("capability", "effective", "why")
DECISIONS = ("grant", "deny", "default")


def permissions(options: argparse.Namespace, where: directories.Places) -> int:
    manifest = manifest_of(where, options.name)
    wanted = dict(_decision(text) for text in options.set or ())
    private = None if options.private is None else networks(options.private)
    if wanted or private is not None:
        said = decide(options, where, lambda chosen: _changed(chosen, wanted, private))
        output.say(f"changed the permissions of {options.name}; {said}")
        return EXIT_OK
    _show(options, manifest, DecisionStore(where.state).of(options.name))
    return EXIT_OK


def _decision(text: str) -> tuple[str, str]:
    name, _, how = text.partition("=")
    capabilities.check(name)
    if how not in DECISIONS:
        raise Fault(
            "EINVAL", f"{shown(text)} is no decision; write {name}=grant, {name}=deny or {name}=default"
        )
    return name, how


def networks(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(word.strip())) for word in text.split(",") if word.strip())
    except ValueError as problem:
        raise Fault(
            "EINVAL", f"--private: {problem}; write networks like 10.0.0.0/8, or '' for none"
        ) from None


def _changed(chosen: Chosen, wanted: dict[str, str], private: tuple[str, ...] | None) -> Chosen:
    decided = {**chosen.capabilities, **cast(dict[str, Decision], wanted)}
    return replace(
        chosen,
        capabilities={name: how for name, how in decided.items() if wanted.get(name) != "default"},
        private=chosen.private if private is None else private,
    )


def _show(options: argparse.Namespace, manifest: JsonManifest, chosen: Chosen) -> None:
    found = json_kinds.granted(manifest, chosen).explained
    if options.json:
        rows = [
            {"capability": one.capability, "effective": one.effective, "reason": one.reason} for one in found
        ]
        output.emit({"capabilities": rows, "private": list(chosen.private)})
        return
    output.table(HEADS, [(one.capability, "yes" if one.effective else "no", one.reason) for one in found])
    if chosen.private:
        output.say(f"it may talk to {', '.join(chosen.private)}, which are no public addresses")
