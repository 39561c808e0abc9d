"""systemd, through the program systemctl: commands to it, and the daemon that it keeps.

This file must never know the content of a unit.
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
    """Returns the output of systemctl. Raises EHOSTDOWN if it fails."""
    command = ["systemctl", "--system" if system else "--user", "--no-pager", *words]
    environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}  # after su, it is not set
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environ, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Fault("EHOSTDOWN", f"systemctl {' '.join(words)} failed: {said}; see: journalctl -u {MOUNT}")
    return done.stdout


def keeps(daemon: RunningDaemon) -> bool | None:
    """Returns True if the daemon is that of the machine's unit, False for a user's unit, None for neither. A
    process that a tool started is in the unit's control group too, but does not count."""
    if not (unit := _UNIT.search(daemon.groups)):
        return None
    system = "/user@" not in unit[1]
    with suppress(Fault, OSError):  # there may be no systemd to ask
        said = tell(system, "show", "--property=MainPID", "--value", MOUNT)
        return system if said.strip() == str(daemon.process.pid) else None
    return None
