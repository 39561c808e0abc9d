"""The output of MCP servers while they start. A program may download itself first, and only its output tells
how far it is.

Rules: a server's user may write these files at will. So no link is followed, only a regular file is read, and
only a bounded part of it.
This file must never know how servers are added.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cortexfs.cli import mounts, output
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import NOBODY
from cortexfs.core.manifest.mcp_server import ERRORS, PREFIX, STARTING
from cortexfs.plugins.mcp_servers import home_of
from cortexfs.state import no_links
from cortexfs.state.directories import kept_of

MAX_SHOWN = 64 << 10  # bytes at once
MAX_LAST = 4 << 10
LAST_LINES = 5


class Starts:
    """The output of these servers' starts, from now on."""

    def __init__(self, state: Path, names: Iterable[str]) -> None:
        self._paths = {name: _path(state, name) for name in names}
        self._sizes = {name: _size(path) for name, path in self._paths.items()}
        self._rest = dict.fromkeys(self._paths, b"")

    def go_on(self, facts: dict[str, list[str]]) -> bool:
        """Show new output. Returns True if there was any, or if a server is still being started."""
        has_printed = any([self._show(name) for name in self._paths])
        rows = mounts.by_name(facts, "broken plugin")
        return has_printed or any(rows.get(PREFIX + name, "").startswith(STARTING) for name in self._paths)

    def _show(self, name: str) -> bool:
        path = self._paths[name]
        if _size(path) < self._sizes[name]:  # another start has begun
            self._sizes[name], self._rest[name] = 0, b""
        data = _read(path, self._sizes[name], MAX_SHOWN)
        self._sizes[name] += len(data)
        *lines, self._rest[name] = (self._rest[name] + data).split(b"\n")
        for line in lines:
            if line.strip():
                output.say(f"{name}: {line.decode(errors='replace').rstrip()}")
        return bool(data)


def last_lines(state: Path, name: str) -> list[str]:
    """Returns the last lines that a server printed when it was started for its description."""
    text = _read(_path(state, name), -MAX_LAST, MAX_LAST).decode(errors="replace")
    return [line.rstrip() for line in text.split("\n") if line.strip()][-LAST_LINES:]


def _path(state: Path, name: str) -> Path:
    """Returns the path of the output, in the home of nobody under root, else in that of the mount's user."""
    try:
        owner = os.stat(state).st_uid
    except OSError:
        owner = os.geteuid()
    return kept_of(state) / home_of(name) / str(owner or NOBODY) / ERRORS


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _read(path: Path, start: int, most: int) -> bytes:
    try:
        return no_links.read(path, start, most)
    except (OSError, Fault):
        return b""
