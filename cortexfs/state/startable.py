"""Files that the kernel can start as programs, recognized by their first bytes.

Rules: nothing is started. If the kernel also starts other kinds of files (binfmt_misc), those pass.
"""

from __future__ import annotations

import contextlib
import os

LOOKED_AT = 256  # bytes; the kernel reads the first line in them
_ELF = b"\x7fELF"
_OTHERS = "/proc/sys/fs/binfmt_misc"
_MEND = "as #!/bin/sh or #!/usr/bin/env python3"


def why_not(data: bytes) -> str:
    """Returns why a file that begins with `data` cannot be started, and the mend; empty if it can."""
    if data.startswith(_ELF) or (not data.startswith(b"#!") and _others()):
        return ""
    if not data.startswith(b"#!"):
        return f"it is no program: write a first line that names its interpreter, {_MEND}"
    line = data[2:LOOKED_AT].partition(b"\n")[0]
    if line.endswith(b"\r"):
        return "its first line ends in CR LF: write its lines with LF alone"
    interpreter = os.fsdecode((line.split() or [b""])[0])
    if not interpreter:
        return f"its #! line names no interpreter: write one, {_MEND}"
    if interpreter.startswith("/") and not os.access(interpreter, os.X_OK):
        return f"its #! line names {interpreter}, which is no program here: install it, or name another"
    return ""


def of_file(path: str | os.PathLike[str]) -> str:
    """Returns the same for a file. Empty if it cannot be read, as its user may run it all the same."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return why_not(file.read(LOOKED_AT))
    return ""


def _others() -> bool:
    """Returns True if other kinds of programs are registered with the kernel."""
    with contextlib.suppress(OSError):
        return bool({*os.listdir(_OTHERS)} - {"register", "status"})
    return False
