"""The plugins of a running mount, for commands that list them: from its status, its objects and its commands.

This file must never know which plugins are installed.
"""

from __future__ import annotations

import argparse
import os
import re

from cortexfs.cli import mounts, objects, plugin_commands
from cortexfs.core.errors import Fault
from cortexfs.core.registry import key_of, plain

HOOKS = "hooks of "  # the beginning of a line of the status, with the plugin's hooks
_ORIGIN = re.compile(r"plugin:([^@ ]+)@(\S+)")


class LivePlugins:
    """The plugins of a running daemon: their tools, models and commands, and the broken ones."""

    def __init__(self, root: str, text: str) -> None:
        facts = mounts.facts(text)
        self.hooks = {key.removeprefix(HOOKS) for key in facts if key.startswith(HOOKS)}
        self.broken = mounts.by_name(facts, "broken plugin")
        self.wrong = mounts.by_name(facts, "wrong tools")
        self.tools: dict[str, list[str]] = {}
        self.models: dict[str, list[str]] = {}
        self.versions: dict[str, str] = {}
        for class_, by_plugin in (("tool", self.tools), ("model", self.models)):
            for row in objects.rows(root, objects.paths_of(root, class_)):
                if found := _ORIGIN.match(row.origin):
                    by_plugin.setdefault(found[1], []).append(plain(key_of(row.object))[1])
                    self.versions[found[1]] = found[2]
        self.commands: dict[str, list[str]] = {}
        for name, command in plugin_commands.listed(root, plugin_commands.SECONDS).items():
            if command["status"] == plugin_commands.READY:
                self.commands.setdefault(command["plugin"], []).append(name)


def live_of(options: argparse.Namespace) -> LivePlugins | None:
    """Returns None if no daemon has the listed directories: none runs, or it is another user's."""
    try:
        root = mounts.root(options.root)
        mount = mounts.mounted_at(root)
        is_named = options.state or options.config or {"CTX_STATE", "CTX_CONFIG"} & os.environ.keys()
        if mount and not is_named and os.getuid() not in (0, mount.owner):
            return None
        return LivePlugins(root, mounts.status_text(root))
    except Fault:
        return None  # a listing works without a mount, and its status column says so


def status_of(broken: bool, enabled: bool, serves: bool, mounted: bool) -> str:
    if broken:
        return "broken"
    if not enabled:
        return "disabled"
    if not mounted:
        return "not mounted"
    return "loaded" if serves else "no tools"
