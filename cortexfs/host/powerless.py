"""Execute a program that reads untrusted input, with no power but to read.

    python -I -m cortexfs.host.powerless PROGRAM [WORD...]

Rules: PROGRAM is a path. It may write to the descriptors passed to it but to no file, opens no socket, and
has no capability. It keeps its user, so that no process of another user may trace it. Powers that this kernel
cannot take away stay.
This file must never know which program it is.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from typing import NoReturn

from cortexfs.core.errors import Fault
from cortexfs.linux import capabilities, landlock, seccomp, syscalls

MAX_MEMORY = 1 << 30
MAX_SECONDS = 20


def give_up() -> None:
    for kind, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, MAX_MEMORY),
        (resource.RLIMIT_CPU, MAX_SECONDS),
    ):
        resource.setrlimit(kind, (most, most))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    capabilities.keep(0)
    with suppress(Fault):
        landlock.write_only_in([os.devnull])
    with suppress(Fault):
        seccomp.close(network=False, unix=False, metadata=False)


def main() -> NoReturn:
    give_up()
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
