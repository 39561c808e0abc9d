"""The Unix sockets of a confined host: only the runner gets one, to run an object of this daemon's mount.

A service at a path (a session's D-Bus, a container engine, a terminal multiplexer, another CortexFS) executes
commands for every client. Landlock can refuse that only from its version 9 on. So the filter of a confined
host (linux/seccomp.py) asks the fork server about each new Unix socket. It does not ask about socket pairs,
which lead nowhere.

Rules: the decision depends on the asking program and the files that it has opened, as nobody can change
either while it waits. It never depends on an address, which can change after the check. The runner counts
only if it is linked statically: a dynamic linker would execute any code that LD_PRELOAD names. It connects to
the socket beside its object. Outside of a mount, that socket could be a link to anywhere. A mount is known by
its device, which bind mounts and mount namespaces do not change, and which no other file system has. Its type
proves nothing: another daemon's mount has the same type, and takes the caller for a person. Nothing here
waits, and no path of a caller's is touched.
This file must never know what a call or a tool is.
"""

from __future__ import annotations

import itertools
import os
import struct
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cortexfs.linux import syscalls

NAME = "cortexfs-object-runner"
# The runner's paths that the mount's objects may name: the system's, and that of this package.
RUNNERS = (Path("/usr/bin") / NAME, Path(sysconfig.get_path("scripts")) / NAME)

_MOST = 64  # descriptors are looked at; a runner with more is not served
_PT_INTERP = 3
_ELF = struct.Struct("=32xQ14xHH")  # place, size and number of the program headers
_HEAD = 4096


def answer(listener: int, device: int) -> None:
    """Answer the one question on `listener`, which is readable. `device` is that of the daemon's mount."""
    # The process may end at any time; then nobody awaits an answer.
    with suppress(OSError):
        question, pid = syscalls.seccomp_question(listener)
        is_allowed = False
        with suppress(OSError, LookupError, ValueError):  # it has ended, or has too many files
            is_allowed = _is_runner(pid) and set(_devices(pid)) == {device}
        syscalls.seccomp_answer(listener, question, allow=is_allowed)


def _is_runner(pid: int) -> bool:
    for runner in RUNNERS:
        with suppress(OSError):
            program = syscalls.device_and_inode(b"/proc/%d/exe" % pid)
            # Looked at each time, as the package may have been installed again.
            if syscalls.device_and_inode(bytes(runner)) == program and is_static(runner):
                return True
    return False


def _devices(pid: int) -> Iterator[int]:
    """Yields the devices of files that a program itself opened without reading, as the runner opens its
    object.

    Descriptors that it inherited are not close-on-exec: they would have been closed.
    """
    with os.scandir(f"/proc/{pid}/fd") as entries:
        numbers = [entry.name for entry in itertools.islice(entries, _MOST)]
    if len(numbers) == _MOST:
        raise ValueError("there may be more")
    for number in numbers:
        text = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        flags = int(fields["flags"], 8)
        if flags & os.O_PATH and flags & os.O_CLOEXEC:
            yield syscalls.device_and_inode(b"/proc/%d/fd/%b" % (pid, number.encode()))[0]


def is_static(program: Path) -> bool:
    with open(program, "rb") as file:
        head = file.read(_HEAD)
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < _ELF.size:  # 64 bits, little-endian
        return False
    start, size, count = _ELF.unpack_from(head)
    if not size or start + size * count > len(head):
        return False
    kinds = (int.from_bytes(head[at : at + 4], "little") for at in range(start, start + size * count, size))
    return _PT_INTERP not in kinds
