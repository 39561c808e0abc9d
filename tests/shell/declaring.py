"""Plugins of programs and libraries, as a daemon would describe them to a host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cortexfs
from cortexfs.core import hostcalls
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.targets import Programs, ProgramTarget
from cortexfs.core.manifest.toml import Protocol
from cortexfs.plugins.package import targets as files

PYTHON = os.path.realpath(sys.executable)
NATIVE = Path(__file__).parents[1] / "fixtures" / "native"
INCLUDE = Path(cortexfs.__file__).parent / "include"


def script(where: Path, text: str, interpreter: str = "/bin/sh") -> str:
    """Create a script that everybody may run, and return its path."""
    path = where / f"tool{len(list(where.iterdir()))}"
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def python(where: Path, text: str) -> str:
    """Create a Python script that starts fast."""
    return script(where, text, f"{PYTHON} -SE")


def program(command: str, *args: str, name: str = "t", **fields: Any) -> ProgramTarget:
    fields.setdefault("working_dir", os.path.dirname(command))
    fields.setdefault("input_schema", {"type": "object"})
    return ProgramTarget(name=name, description="A tool", argv=(command, *args), **fields)


def plugin(tools: Iterable[ProgramTarget], protocol: Protocol = "json", name: str = "p") -> hostcalls.Plugin:
    return hostcalls.Plugin(name, "1.0", targets.PROCESS, targets.target(Programs(tuple(tools), protocol)))


def build(where: Path, source: Path, *flags: str, name: str = "lib.so") -> str:
    """Build a library with the system's compiler, and return its path."""
    made = where / name
    command = ["cc", "-shared", "-fPIC", "-O1", "-I", str(INCLUDE), *flags, "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    return str(made)


def library(path: str, name: str = "fixture", version: str = "1.0") -> hostcalls.Plugin:
    return hostcalls.Plugin(name, version, targets.NATIVE, targets.target(files.library(path)))
