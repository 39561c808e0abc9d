"""`ctx agent` and `ctx tool` in your home: your own objects, made and removed as files of the mount.

Rules: only actions that every user can do by hand are done here. An agent that cannot be set up as requested
is removed again.
This file must never know where the daemon keeps agents.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from cortexfs.cli import reload
from cortexfs.core.errors import Fault, code_of, os_faults

CLASS = "agent"
_KEPT = {"agent": "its sessions", "tool": "the log of its runs"}


def path_of(name: str, class_: str = CLASS) -> str:
    """Returns the path below the root."""
    return f"home/{os.getuid()}/{class_}/{name}"


def has(root: str, name: str, class_: str = CLASS) -> bool:
    """Returns True if there is such an object, and not an alias of that name."""
    path = f"{root}/{path_of(name, class_)}"
    return os.path.lexists(path) and not os.path.islink(path)


def make(root: str, name: str, texts: Mapping[str, str], class_: str = CLASS) -> None:
    """Make an object with these controls. When this returns, an agent answers on its socket."""
    path = path_of(name, class_)
    if os.path.lexists(f"{root}/{class_}/{name}"):
        why = f"there is {class_}/{name} already, and {path} would share {_KEPT[class_]}"
        raise Fault("EEXIST", f"{why}; choose another name")
    try:
        os.close(os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    except FileExistsError:
        raise Fault("EEXIST", f"there is {path} already; edit the files in its .d/") from None
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{path} cannot be made: {problem.strerror}") from None
    try:
        for control, text in texts.items():
            write(f"{root}/{path}.d/{control}", text)
    except BaseException:  # such as an interrupt: no half-made object stays
        with contextlib.suppress(OSError):
            os.unlink(f"{root}/{path}")
        raise
    if class_ == CLASS:
        reload.until(lambda: _is_ready(f"{root}/{path}"))


def write(control: str, text: str) -> None:
    """Write a control as an editor would: the daemon checks the value when the file is closed."""
    try:
        with open(os.open(control, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(text.encode())
    except OSError as problem:
        why = f"{os.path.basename(control)} is refused: {problem.strerror}, and the daemon's log says why"
        raise Fault(code_of(problem.errno), f"{why}; nothing was made") from None


def _is_ready(path: str) -> bool:
    """Returns True once the socket is bound, a moment after the file. A broken agent never gets one."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(f"{path}.sock")
        return True
    with open(f"{path}.d/status") as status:
        return status.read().startswith("broken")


def remove(root: str, name: str, class_: str = CLASS) -> None:
    with os_faults(f"{path_of(name, class_)} cannot be removed"):
        os.unlink(f"{root}/{path_of(name, class_)}")
