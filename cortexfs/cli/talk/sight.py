"""A chat's view of its machine: files that calls are about, and the rows of the screen.

Rules: files are read as the user, so that nobody sees in a diff what he could not read. What a path lies
on may never answer, and is given a second.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

from cortexfs.chat.calls import Surroundings
from cortexfs.chat.diffs import MAX_FILE
from cortexfs.cli.bounded import ask

SECONDS = 1.0


def read(path: str) -> bytes:
    """A file, as far as it is compared."""
    return ask(lambda: _content(path), SECONDS)


def _content(path: str) -> bytes:
    # To open a pipe would hang, and devices may do something.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return file.read(MAX_FILE + 1)


SIGHT = Surroundings(read, lambda: shutil.get_terminal_size().lines)
