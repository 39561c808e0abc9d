"""The end of a plugin: its last hooks, called in a host of whoever uninstalls it.

Rules: a hook that fails, or does not end, is told and holds nothing up. Whose hooks were never told that the
plugin is installed has none that could be told of its end.
This file must never know what a hook does.
"""

from __future__ import annotations

import argparse
import os
import subprocess

from cortexfs.cli import mounts, output, plugin_commands
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import UNINSTALL, UNINSTALL_SECONDS
from cortexfs.host.call import plugin_state
from cortexfs.state import directories
from cortexfs.state.beside import kept_of

# What the mount may take besides, to check the plugin and to start a host.
SECONDS = UNINSTALL_SECONDS + 30


def last_hooks(options: argparse.Namespace, where: directories.Places, name: str) -> None:
    if plugin_state.has_begun(kept_of(where.state) / name, os.getuid()) and (
        why := _called(options.root, name)
    ):
        output.say(f"{name} goes, though its last hooks were not all called in good order: {why}")


def _called(given: str | None, name: str) -> str:
    """Returns the reason of a failure; nothing, else."""
    try:
        point = mounts.root(given)
        mounts.status_text(point)
    except Fault as fault:
        return fault.message
    words = [f"{point}/{plugin_commands.RUNNER}", f"{point}/{plugin_commands.FILE}", UNINSTALL, name]
    try:
        done = subprocess.run(
            words,
            env=os.environ | {"CTX_OUTPUT": "text"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return done.stderr.strip() if done.returncode else ""
