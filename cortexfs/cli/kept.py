"""The user's choice of whether questions are kept: `ctx log off` and `on`.

    if not kept.is_on(): ...    `ctx ask` then keeps nothing, as with --no-log

Rules: the choice is a file in the configuration directory; if the file exists, the log is off. A directory
that cannot be named or looked into means on, which is the default.
"""

from __future__ import annotations

import os
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.state import directories

FILE = "log.off"


def is_on() -> bool:
    """Returns True if questions are to be kept."""
    try:
        return not os.path.lexists(_path())
    except Fault:
        return True


def turn(on: bool) -> None:
    """Keep the questions that are asked from now on, or keep none."""
    path = _path()
    if on:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.touch(mode=0o644)


def _path() -> Path:
    return directories.places(os.environ, os.getuid()).config / FILE
