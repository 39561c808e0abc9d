"""Finds the paths of objects and their sockets, and explains why one cannot be reached.

Rules: a name (`model/debug/echo`) is looked up below CTX_ROOT, or below /ctx without it; everything else is a
path. The socket of an alias is the socket of its object.
This file must never know the protocol of a socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping

from cortexfs.client.results import Failed
from cortexfs.core import mountinfo
from cortexfs.core.errors import code_of
from cortexfs.core.names import CLASSES

DEFAULT_ROOT = "/ctx"
MAX_ADDRESS = 107  # sun_path without its NUL (unix(7))
SUFFIX = ".sock"

# By the error of connect(2): the code for the caller, and the rest of a sentence about {path}.
REFUSALS = {
    errno.ECONNREFUSED: ("EHOSTDOWN", "exists, but no daemon serves it now; see: ctx status"),
    errno.ENOTCONN: ("EHOSTDOWN", "is on the mount of a dead daemon; replace it with: ctx mount"),
    errno.ECONNABORTED: ("EHOSTDOWN", "is on a mount that was aborted; replace it with: ctx mount"),
    errno.ENOENT: ("ENOENT", "does not exist: no such object, or it has no conversations; see: ctx ls"),
    errno.ENOTDIR: ("ENOENT", "does not exist: a part of its path is not a directory; see: ctx ls"),
    errno.EACCES: ("EACCES", "does not let you connect: its mode bits forbid it; see: ls -l"),
    errno.EAGAIN: ("EAGAIN", "has too many connections waiting; try again"),
}
# The same, by the error of execve(2).
EXEC_REFUSALS = {
    errno.ENOENT: ("ENOENT", "does not exist, or its runner is not installed; see: ctx ls, ctx doctor"),
    errno.ENOTDIR: REFUSALS[errno.ENOTDIR],
    errno.ENOTCONN: REFUSALS[errno.ENOTCONN],
    errno.ECONNABORTED: REFUSALS[errno.ECONNABORTED],
    errno.EACCES: ("EACCES", "is not executable for you, or is not an object; see: ls -l"),
    errno.E2BIG: ("EMSGSIZE", "cannot take so long an argument, or so many; use standard input"),
    errno.ENOEXEC: ("EPROTO", "is not a program; see: ctx doctor"),
}


def object_path(name: str | os.PathLike[str]) -> str:
    """Returns the path of the object with this name or path."""
    path = os.path.expanduser(os.fspath(name))
    if path.split("/", 1)[0] in (*CLASSES, "home", "shared"):
        return os.path.join(os.environ.get("CTX_ROOT") or _default(), path)
    return path


def _default() -> str:
    """Returns the default mount. Raises Failed if neither this user nor root mounted it."""
    with open(mountinfo.TABLE, encoding="utf-8", errors="surrogateescape") as file:
        mounts = [mount for mount in mountinfo.mounts(file.read()) if mount.point == DEFAULT_ROOT]
    if mounts and mounts[-1].is_strangers(os.getuid()):
        raise Failed("EHOSTDOWN", mounts[-1].reason())
    return DEFAULT_ROOT


def socket_path(name: str | os.PathLike[str]) -> str:
    """Returns the path of the object's socket. The path of a socket is returned as it is."""
    path = object_path(name)
    return path if path.endswith(SUFFIX) else os.path.realpath(path) + SUFFIX


@contextlib.contextmanager
def address(path: str) -> Iterator[str]:
    """Returns an address for connect(2): the path itself, or a shorter path through its open directory."""
    if len(os.fsencode(path)) <= MAX_ADDRESS:
        yield path
        return
    directory, name = os.path.split(path)
    try:
        place = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise refused(path, problem) from None
    try:
        short = f"/proc/self/fd/{place}/{name}"
        if len(os.fsencode(short)) > MAX_ADDRESS:
            raise Failed("EINVAL", f"{path} has a name that is too long for a socket; choose a shorter name")
        yield short
    finally:
        os.close(place)


def refused(path: str, problem: OSError, refusals: Mapping[int, tuple[str, str]] = REFUSALS) -> Failed:
    """Returns the error for a connect that failed; with EXEC_REFUSALS, for an object that cannot be run."""
    reason = code_of(problem.errno), f"cannot be reached: {problem.strerror}"
    code, why = refusals.get(problem.errno or 0, reason)
    return Failed(code, f"{path} {why}")
