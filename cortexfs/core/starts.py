"""The messages between the daemon and its starter, as values (host/starter.py).

One channel (SOCK_SEQPACKET) between the two, which is as old as the daemon. Every request has a number, and
`StartReply` answers it by that number; what it made comes along as SCM_RIGHTS. `ChildExit` tells of a
process. The first fork server is started unasked, as if request 0 had asked for it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

# What can be started.
FORK_SERVER = "fork server"  # rights: its control socket (core/hostcalls.py), and what it prints
ENGINE = "engine"  # rights: its socket (core/models/engine_protocol.py), and what it prints
LOOKER = "looker"  # the one that sees where callers are; it hears a channel of its own
SIGNATURE = "signature"  # gpgv, about the files of a folder of the state; right: what it prints
USER = "user"  # getent, about a uid; right: what it prints
TEAM = "team"  # the link to other machines; rights: its channel (team/messages.py), and what it prints
KEY = "key"  # the command that prints a provider's key; right: what it prints

PREFIX = ".signature-"  # of the names of such folders
POWERLESS = ("-I", "-m", "cortexfs.host.powerless")
RING, SIGNED, TEXT = "plugin-keys.gpg", "signature", "text"  # of the files there

FIRST = 0  # the number of the fork server that is started unasked

MAX_MESSAGE = 16 << 10
MAX_RIGHTS = 2


def gpgv(program: str, folder: str) -> list[str]:
    """The interpreter's words for gpgv with nothing but the folder's ring. The path is absolute: gpgv looks
    for others in its home, and takes what begins with a hyphen for an option."""
    files = [f"{folder}/{name}" for name in (SIGNED, TEXT)]
    options = ["--status-fd", "1", "--weak-digest", "SHA1", "--keyring", f"{folder}/{RING}"]
    return [*POWERLESS, program, *options, "--", *files]


class StartChild(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    number: int
    what: str
    argument: str = ""  # the name of a folder with a signature, or of a provider, or a uid


class KillChild(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """End what was started under that number, if it has not ended. It is not answered."""

    number: int


class MountDevice(msgspec.Struct, frozen=True, array_like=True, tag="mounted"):
    """Know the daemon's mount by its device. Said once, while the daemon reads nothing of strangers yet."""

    number: int
    device: int


class Bind(msgspec.Struct, frozen=True, array_like=True, tag="bind"):
    """Make a listener at a path of the daemon's mount, which is its answer's only right."""

    number: int
    path: str
    backlog: int


class Unmount(msgspec.Struct, frozen=True, array_like=True, tag="unmount"):
    """Unmount the daemon's mount, which the daemon serves no more. What others have mounted over it stays."""

    number: int


class StartReply(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    number: int
    pid: int = 0
    error: int = 0  # an errno


class ChildExit(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    number: int
    status: int  # as os.waitstatus_to_exitcode: negative for a signal


ToStarter: TypeAlias = StartChild | KillChild | MountDevice | Bind | Unmount
FromStarter: TypeAlias = StartReply | ChildExit
