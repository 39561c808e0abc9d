"""A fork server that is executed as the starter executes it: python sealed_forks.py FD ..."""

from __future__ import annotations

import os
import sys

from cortexfs.host import sealing

if __name__ == "__main__":
    sealed = sealing.sealed(os.path.realpath(sys.executable))
    words = [sys.executable, "-m", sealing.FORK_SERVER, *sys.argv[1:]]
    os.execv(sealed or sys.executable, [*words, sealing.SEALED] if sealed else words)
