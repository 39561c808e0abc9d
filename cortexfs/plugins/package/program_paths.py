"""Where the program of a process tool is, and where it runs.

Rules: unless the tool asks for the host's paths, both lie in the plugin's directory, after every symbolic
link has been followed. A relative path begins at the plugin; no PATH is searched.
This file must never know how a program is started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.toml import DeclaredProcessTool


class ProgramCommand(NamedTuple):
    argv: tuple[str, ...]
    working_dir: str


def resolve(tool: DeclaredProcessTool, plugin: Path) -> ProgramCommand:
    """Both as absolute paths, or the fault; what a program is named by, its links included, is kept."""
    home = _canonical(plugin, "plugin directory", tool)
    command = plugin / tool.command
    if not command.is_file():
        raise _fault("ENOENT", tool, f"command not found: {command}; a relative one begins at the plugin")
    working_dir = plugin / (tool.working_dir or ".")
    if not working_dir.is_dir():
        raise _fault("ENOENT", tool, f"working_dir not found: {working_dir}; it has to be a directory")
    for field, path in (("command", command), ("working_dir", working_dir)):
        if not tool.allow_host_paths and not _canonical(path, field, tool).is_relative_to(home):
            mend = "move it there, or write allow_host_paths = true"
            raise _fault("EPERM", tool, f"{field} escapes plugin directory: {path}; {mend}")
    return ProgramCommand((os.path.abspath(command), *tool.args), os.path.abspath(working_dir))


def _canonical(path: Path, field: str, tool: DeclaredProcessTool) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as problem:  # 3.11 raises RuntimeError for a loop of links
        raise _fault("ENOENT", tool, f"cannot canonicalize {field} {path}: {problem}") from None


def _fault(code: str, tool: DeclaredProcessTool, text: str) -> Fault:
    return Fault(code, f"process tool '{tool.name}' {text}")
