"""systemd, through its program: what it is told, and which daemon it keeps.

This file must never know what is in a unit.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress

from cortexfs.cli.daemons import RunningDaemon
from cortexfs.cli.service.units import MOUNT
from cortexfs.core.errors import Fault

_UNIT = re.compile(rf"(?m)^(?:0:|\d+:name=systemd):(.*/{MOUNT}\.service)(?:/|$)")


def tell(system: bool, *words: str) -> str:
    """Returns what systemctl says; raises EHOSTDOWN where it fails."""
    command = ["systemctl", "--system" if system else "--user", "--no-pager", *words]
    environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}  # as after su, which sets none
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environ, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Fault("EHOSTDOWN", f"systemctl {' '.join(words)} failed: {said}; see: journalctl -u {MOUNT}")
    return done.stdout


def keeps(daemon: RunningDaemon) -> bool | None:
    """Returns True where the daemon is that of the machine's unit, False for a user's, None for neither. What
    tools of it start is in its control group, too, and is not kept."""
    if not (unit := _UNIT.search(daemon.groups)):
        return None
    system = "/user@" not in unit[1]
    with suppress(Fault, OSError):  # of no systemd that can be asked here
        said = tell(system, "show", "--property=MainPID", "--value", MOUNT)
        return system if said.strip() == str(daemon.process.pid) else None
    return None
