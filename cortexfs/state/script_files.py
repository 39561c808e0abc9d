"""The check of a script file that is a tool, by the user who runs it or adds it.

Main path: `header` returns the comment at the top of a file that only this user and root can have written.

Rules: the check runs as the user, who may then run the script. No link leads to a script, so that its path
says where it lies. It has no other name, and no setuid or setgid bit.
This file must never know what a tool is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cortexfs.core.errors import Fault, naming, os_faults
from cortexfs.core.manifest import script
from cortexfs.state import believed, startable


def header(path: str) -> str:
    """Returns the comment of a script. Raises Fault, with the reason, if the file is no tool."""
    with os_faults(f"the script {path} cannot be read"), believed.opened(Path(path)) as file:
        status = os.fstat(file.fileno())
        place = os.readlink(f"/proc/self/fd/{file.fileno()}")
        if place != path:
            raise Fault(
                "EPERM", f"a link leads to the script {path}; add the file itself: ctx tool add {place}"
            )
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise Fault("EPERM", f"{path} is not used: it is setuid or setgid; chmod ug-s {path}")
        if status.st_nlink > 1:
            raise Fault("EPERM", f"{path} is not used: the file has a second name (a hard link); add a copy")
        if not os.access(path, os.X_OK):
            raise Fault("EACCES", f"{path} is not executable for you; run: chmod +x {path}")
        data = file.read(script.MAX_HEADER + 1)
    with naming(f"{path} cannot be a tool"):
        text = script.header_of(data)
    if why := startable.why_not(data):
        raise Fault("ENOEXEC", f"{path} cannot be started: {why}")
    return text
