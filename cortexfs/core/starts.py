"""The messages between the daemon and its starter, as values (host/starter.py).

They share one channel (SOCK_SEQPACKET), which is as old as the daemon. Every request has a number, and
`StartReply` answers with that number, and with the new descriptors as SCM_RIGHTS. `ChildExit` reports the end
of a process. The first fork server is started without a request, as if request 0 had asked for it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

# The processes that can be started, each with the rights in its answer. "Output" is a pipe of its output.
FORK_SERVER = "fork server"  # its control socket (core/hostcalls.py), and output
ENGINE = "engine"  # its socket (core/models/engine_protocol.py), and output
LOOKER = "looker"  # sees where callers are; it listens on a channel of its own
SIGNATURE = "signature"  # gpgv, for the files of a folder of the state; output
USER = "user"  # getent, for a uid; output
TEAM = "team"  # the link to other machines: its channel (team/messages.py), and output
KEY = "key"  # the command that prints a provider's key; output

PREFIX = ".signature-"  # begins the names of folders for SIGNATURE
POWERLESS = ("-I", "-m", "cortexfs.host.powerless")
RING, SIGNED, TEXT = "plugin-keys.gpg", "signature", "text"  # the files in such a folder

FIRST = 0  # the number of the fork server that is started without a request

MAX_MESSAGE = 16 << 10
MAX_RIGHTS = 2


def gpgv(program: str, folder: str) -> list[str]:
    """Returns the interpreter's arguments to run gpgv with the folder's ring alone. `folder` is an absolute
    path: gpgv looks for a relative ring in its home, and takes a leading hyphen for an option."""
    files = [f"{folder}/{name}" for name in (SIGNED, TEXT)]
    options = ["--status-fd", "1", "--weak-digest", "SHA1", "--keyring", f"{folder}/{RING}"]
    return [*POWERLESS, program, *options, "--", *files]


class StartChild(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    number: int
    what: str
    argument: str = ""  # for SIGNATURE the name of a folder, for KEY that of a provider, for USER a uid


class KillChild(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """Kill the process that request `number` started, if it still runs. There is no answer."""

    number: int


class MountDevice(msgspec.Struct, frozen=True, array_like=True, tag="mounted"):
    """Tell the starter the device of the daemon's mount. Sent once, before it reads untrusted input."""

    number: int
    device: int


class Bind(msgspec.Struct, frozen=True, array_like=True, tag="bind"):
    """Create a listener at a path of the daemon's mount. The listener is the only right of the answer."""

    number: int
    path: str
    backlog: int


class Unmount(msgspec.Struct, frozen=True, array_like=True, tag="unmount"):
    """Unmount the daemon's mount, as the daemon no longer serves it. Mounts of others on top of it stay."""

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
