"""The runner that the executables of the mount name in their first line (abi.md 1.20)."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.core.wire import PROTOCOL

NAME = "cortexfs-object-runner"
SYSTEM = Path("/usr/bin") / NAME
MAX_PATH = 250  # the kernel reads 256 bytes of a script's first line (execve(2))


def runner() -> str:
    """Returns the system's runner if it speaks our protocol, else the one that came with the package."""
    if protocol(SYSTEM) == PROTOCOL:
        return str(SYSTEM)
    own = Path(program(NAME))
    if protocol(own) != PROTOCOL:
        raise Fault("EHOSTDOWN", f"{own} is missing, or has another version; install the package again")
    path = str(own)
    if len(path) > MAX_PATH or any(character.isspace() for character in path):
        raise Fault(
            "EINVAL",
            f"the runner's path {path!r} has white space or over {MAX_PATH} bytes, which a #! line"
            f" cannot hold; install it as {SYSTEM}",
        )
    return path


def line(path: str) -> bytes:
    return b"#!" + path.encode() + b"\n"


def program(name: str) -> str:
    """Returns the path of one of this installation's programs."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def protocol(path: Path) -> int | None:
    """Returns the protocol that the runner at `path` speaks, or None if it is no runner."""
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, timeout=5, check=True
        ).stdout.split()
        return int(answer[answer.index(b"protocol") + 1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
