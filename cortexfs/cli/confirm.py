"""Asking before something is removed for good.

Rules: on a terminal a person answers; elsewhere nobody can, and the command says what to give it instead.
"""

from __future__ import annotations

import sys

from cortexfs.cli import output
from cortexfs.core.errors import Fault


def sure(question: str) -> bool:
    if not sys.stdin.isatty():
        raise Fault("EINVAL", "nobody can be asked here; say --yes")
    print(f"{output.printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
