"""How /proc/PID/mountinfo writes paths (proc_pid_mountinfo(5)).

This file must never know what is mounted.
"""

from __future__ import annotations

import re


def escaped(path: str) -> bytes:
    """Returns the path with space, tab, newline and backslash in octal."""
    return re.sub(
        rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), path.encode(errors="surrogateescape")
    )
