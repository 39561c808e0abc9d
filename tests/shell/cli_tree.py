"""A directory that looks like a mount, for the command line to read. No daemon is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE

STATUS = """\
version: 0.1.0
uptime: 61 s
pid: 4194999
mount: /ctx
tools: 2
models: 1
agents: 0
runs: 3 active, 120 total
hosts: 2
broken plugin: notes: its process was killed by SIGSEGV
last error: none
"""
READ_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["path"],
}
# Stands for the runner: prints its arguments.
ECHO = '#!/bin/sh\n{header}\nfor word; do echo "<$word>"; done\ncat\nexit 7\n'


# The commands that plugins add to the program, as a mount lists them.
COMMANDS: tuple[dict[str, Any], ...] = (
    {
        "name": "wave-hand",
        "description": "Waves 100%\x1b[31m, %(prog)s",
        "args": [
            {"name": "whom", "type": "string", "description": "At whom", "required": True},
            {"name": "times", "type": "number", "description": "How often"},
            {"name": "back", "type": "boolean", "description": "Whether to wait"},
        ],
        "options": [
            {"name": "wide", "type": "boolean", "description": "Widely", "flag": "-w"},
            {"name": "with", "type": "string", "description": "With what, 5 % of it", "flag": "-h"},
            {"name": "speed", "type": "number", "description": "How fast", "flag": "-s"},
        ],
        "plugin": "waves",
        "status": "ready",
    },
    {"name": "status", "description": "Hides", "args": [], "options": [], "plugin": "bad", "status": "ready"},
    {"name": "wink", "plugin": "winks", "status": "disabled"},
    {"name": "nod", "plugin": "nods", "status": "broken: it ends"},
)


def plant(root: Path) -> Path:
    """Create two tools, a model with an alias, commands of plugins and a status. Returns the root."""
    root.mkdir()
    (root / "status").write_text(STATUS)
    add(root, "tool/fs.read", "Read a file. It may be large.", "builtin", READ_SCHEMA)
    add(root, "tool/note.add", "Keep a note\x1b[31m.", "plugin:notes@1.2", {})
    add(root, "model/openai/gpt-5", "", "provider:openai", None)
    (root / "model" / "main").symlink_to(root / "model/openai/gpt-5")
    (root / "agent").mkdir()
    (root / ".commands").write_text("".join(f"{json.dumps(one)}\n" for one in COMMANDS))
    (root / "bin").mkdir()
    (root / "bin" / "cortexfs-object-runner").write_text(ECHO.format(header='echo "$CTX_OUTPUT"'))
    (root / "bin" / "cortexfs-object-runner").chmod(0o555)
    return root


def add(root: Path, name: str, description: str, origin: str, schema: Mapping[str, Any] | None) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"name": path.name, "description": description, "status": "ready", "plugin": origin}
    header = "\n".join(f"# cortexfs.{key}={value}" for key, value in facts.items() if value)
    path.write_text(ECHO.format(header=header))
    path.chmod(0o555)
    controls = path.with_name(f"{path.name}.d")
    controls.mkdir()
    (controls / "origin").write_text(f"{origin}\n")
    if schema is not None:
        (controls / "schema").write_text(json.dumps(schema))


def ctx(*words: str, root: Path, input: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `ctx` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cortexfs.cli.main", *words],
        input=input,
        env={"PATH": os.environ["PATH"], "HOME": str(root.parent), "CTX_ROOT": str(root), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
