"""A fork server that is executed as the starter executes it: python sealed_forks.py FD ..."""

from __future__ import annotations

import os
import sys

from cortexfs.host.confine import sealed_program

if __name__ == "__main__":
    sealed = sealed_program.sealed(os.path.realpath(sys.executable))
    words = [sys.executable, "-m", sealed_program.FORK_SERVER, *sys.argv[1:]]
    os.execv(sealed or sys.executable, [*words, sealed_program.SEALED] if sealed else words)
