"""A program's file in a mount of its own that is read-only.

/proc/self/exe of a process leads to its program through the mount by which that was executed, whatever mounts
the process has by now. A host is a fork of the fork server, so what that link leads to must not be changed
through it: not the mode of the interpreter, for one (readonly_mounts.py keeps the rest).

Rules: where the system gives no such mount, the fork server is executed as it is, and told so.
This file must never know what a host is.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from cortexfs.core.errors import Fault
from cortexfs.host.confine import readonly_mounts
from cortexfs.linux import syscalls
from cortexfs.state.no_links import held

FORK_SERVER = "cortexfs.host.forkserver"
SEALED = "--sealed"


def sealed(path: str) -> str | None:
    """Another path of the program, by which nothing of it can be changed; None where there can be none. It
    holds in this process, and for what that executes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        pid = os.fork()
        if not pid:
            with suppress(OSError, Fault):
                readonly_mounts.enter()
                with held(path, os.O_PATH) as program:
                    copy = syscalls.copy_mount(program)
                syscalls.set_mount(copy, is_read_only=True)
                socket.send_fds(theirs, [b"p"], [copy])
            os._exit(0)
        theirs.close()
        _, found, _ = syscalls.receive(ours, 1, 1)
        os.waitpid(pid, 0)
    return f"/proc/self/fd/{found[0]}" if found else None
