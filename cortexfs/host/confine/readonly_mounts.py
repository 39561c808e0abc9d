"""A mount namespace in which nothing can be changed but below the writable paths of a view.

Landlock confines neither chmod(2), chown(2), utime(2) and setxattr(2) nor changes of a file's flags. A
read-only mount refuses them all. So a confined host has mounts of its own: all of them are read-only. Copies
of the writable paths, with the flags that these had, lie over them.

Rules: `enter` comes first and takes powers over mounts; a user without any gets them from a user namespace of
its own, in which no other user exists. Paths are opened as the caller. A path that is a link by now is
skipped, as the view was made for no link. No descriptor from another mount namespace may get in: its mount
would be writable.
This file must never know what an agent, a host or a plugin is.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from cortexfs.core.errors import Fault
from cortexfs.core.value_formats import is_below
from cortexfs.linux import capabilities, syscalls
from cortexfs.state.no_links import held


def enter() -> None:
    """Take a mount namespace of this process's own, to which nothing propagates. Raises OSError if the system
    allows none, and Fault EACCES if the namespace cannot be set up."""
    mounts = syscalls.NAMESPACES["mnt"]
    if syscalls.permitted() >> capabilities.SYS_ADMIN & 1:
        syscalls.unshare(mounts)
    else:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(mounts | syscalls.NAMESPACES["user"])
        _map(uid, gid)
    with held("/", os.O_PATH) as root:
        syscalls.set_mount(root, is_private=True)


def sealed(path: str) -> str | None:
    """Returns another path of a program, by which it cannot be changed; None if there can be none. The path
    holds in this process, and for a program that it executes.

    /proc/self/exe of a process leads to its program through the mount by which it was executed, whatever
    mounts the process has by now. So that mount must allow no change of the program, for instance of the
    interpreter's mode.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        pid = os.fork()
        if not pid:
            with suppress(OSError, Fault):
                enter()
                with held(path, os.O_PATH) as program:
                    copy = syscalls.copy_mount(program)
                syscalls.set_mount(copy, is_read_only=True)
                socket.send_fds(theirs, [b"p"], [copy])
            os._exit(0)
        theirs.close()
        _, rights, _ = syscalls.receive(ours, 1, 1)
        os.waitpid(pid, 0)
    return f"/proc/self/fd/{rights[0]}" if rights else None


def _map(uid: int, gid: int) -> None:
    """Be the same user and group in a user namespace that has no other (user_namespaces(7))."""
    # Without "deny" the kernel lets no unprivileged process set the groups.
    for name, text in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"):
        try:
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            why = f"a user namespace cannot be set up: {error.strerror}"
            raise Fault("EACCES", f"an agent's tool cannot be confined here: {why}") from error


def keep(view: Iterable[tuple[str, str]]) -> None:
    """Let nothing be changed but below the paths of `view` that have a "w". Of two views both count."""
    paths = sorted({path for path, letters in view if "w" in letters}, key=lambda path: path.split("/"))
    if "/" in paths:
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one per path; limits.restrict comes later
    copies: dict[str, int] = {}
    last = ""
    try:
        for path in paths:
            if last and is_below(path, last):
                continue
            last = path
            with _writable(path) as place:
                if place is not None:
                    copies[path] = syscalls.copy_mount(place)
        with held("/", os.O_PATH) as root:
            syscalls.set_mount(root, is_read_only=True)
        for path, mount in copies.items():
            with _writable(path) as place:
                if place is not None:
                    syscalls.put_mount(mount, place)
    finally:
        for mount in copies.values():
            os.close(mount)


@contextmanager
def _writable(path: str) -> Iterator[int | None]:
    """Yields the path, opened; None if it is missing, closed to the caller, or a link by now."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        is_same, mode = os.readlink(f"/proc/self/fd/{place}") == path, os.fstat(place).st_mode
        # Devices and pipes can be written through a mount that is read-only.
        yield place if is_same and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) else None
    finally:
        os.close(place)
