"""A fork server that is started as the starter starts it: python sealed_forks.py FD ..."""

from __future__ import annotations

import os
import sys

from cortexfs.host import starter
from cortexfs.host.confine import readonly_mounts

if __name__ == "__main__":
    sealed = readonly_mounts.sealed(os.path.realpath(sys.executable))
    words = [sys.executable, "-m", starter.FORK_SERVER, *sys.argv[1:]]
    os.execv(sealed or sys.executable, [*words, starter.SEALED] if sealed else words)
