"""An installed plugin with a manifest.json, for the commands that decide something about it.

Rules: what was decided counts for the running mount when the command has ended, or the command says why not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from cortexfs.cli import parser, reload
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.plugins.install.decisions import Chosen, DecisionStore
from cortexfs.plugins.package import directory, manifests
from cortexfs.state import directories


def manifest_of(where: directories.Places, name: str) -> JsonManifest:
    """Returns the plugin's manifest; raises a Fault for a plugin that is not there, or of the other kind."""
    folder = folder_of(where, name)
    manifest = directory.read(folder)
    if not manifests.is_json(manifest):
        mend = f"edit that of its author's directory, and install it again: {folder}"
        raise Fault("EINVAL", f"{name} has a manifest.toml, which says all that there is to say; {mend}")
    return manifest.json


def folder_of(where: directories.Places, name: str) -> Path:
    base = where.state / directory.FOLDER
    folder = base / names.check(name)
    if not folder.is_dir():
        hint = parser.nearest(name, [path.name for path in directory.folders(base)])
        raise Fault("ENOENT", f"no plugin {name!r} is installed in {base}{hint or '; see: ctx plugin list'}")
    return folder


def decide(options: argparse.Namespace, where: directories.Places, make: Callable[[Chosen], Chosen]) -> str:
    """Write it down and tell the daemon; what came of it."""
    DecisionStore(where.state).change(options.name, make)
    return reload.told(options.root, reload.broken("plugin", options.name, "does not load"))
