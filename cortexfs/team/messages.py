"""The messages between a daemon and its link, and between two links, as values.

There are two channels. Between the daemon and its link (link.py) is one SOCK_SEQPACKET. The daemon opens
calls, each with a stream of its own as SCM_RIGHTS, which carries core/wire.py as to a host. The link reports
the objects of other machines. Between links, a call begins with a proven `CallBegin` on a subject of its own.
Then pieces go in both directions: a number that grows by one, and messages of core/wire.py or of those below.
Rules: nothing here imports packages that only members of a team have, as the daemon imports this.
This file must never know the carrier of a message.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import msgspec

from cortexfs.core import hostcalls, names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE

T = TypeVar("T")

# Between links, beside wire.STDIN, STDOUT, STDERR, WANT and EXIT.
BEGUN = ord("b")  # the other machine has taken the call
REFUSED = ord("f")  # msgpack [code, message]: the machine has not taken the call, or has lost it
CREDIT = ord("r")  # u32: that many more bytes may be sent
CANCEL = ord("k")  # empty
ASK = ord("?")  # empty: answer, as nothing has come from you
ANSWER = ord("!")  # empty
NUMBER = struct.Struct("<I")
UNKNOWN = NUMBER.pack(0xFFFFFFFF)  # the whole answer to an ASK about a call that does not go on

WINDOW = 256 << 10  # bytes that may be on their way; measured: enough for 50 MB/s on a LAN
PIECE = 64 << 10
MAX_PACKET = 160 << 10  # of the channel between the daemon and its link
MAX_ENTRY = 128 << 10  # bytes of the entry of one object
MAX_DIRECTORY = 64 << 20  # bytes of all entries, which each link and daemon keeps in memory
MAX_OBJECTS = 4096  # of all other machines
ANY = "any"
CLASSES = ("tool", "model", "agent")  # of exportable objects
# Those of the caller's variables that tell how to answer. Paths, homes and names are each machine's own.
TRAVELS = frozenset(b"LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR".split())

_MACHINE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,29}[a-z0-9])?", re.ASCII)


class CallOpening(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """The daemon's message that opens a call: the object, and the caller as the kernel reports it."""

    machine: str
    class_: str
    name: str
    uid: int
    label: str
    depth: int


class RemoteObject(msgspec.Struct, frozen=True, array_like=True, tag="object"):
    """An object that a machine exports. Only that machine decides who may call it."""

    machine: str
    class_: str
    name: str
    description: str
    schema: bytes
    capabilities: hostcalls.Capabilities
    timeout: float | None
    dry_run_flag: bool
    extra: dict[str, str]


class ObjectGone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    machine: str
    class_: str
    name: str


class MachineState(msgspec.Struct, frozen=True, array_like=True, tag="machine"):
    """A machine has come, or has been silent for too long."""

    machine: str
    is_live: bool


class LinkState(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """The state of the link; `problem` is empty while it is connected."""

    problem: str


FromLink: TypeAlias = RemoteObject | ObjectGone | MachineState | LinkState


class CallBegin(msgspec.Struct, frozen=True, array_like=True):
    """A call on its way to the machine that answers it. `user` is a name on the caller's machine."""

    run: str
    user: str
    label: str
    depth: int
    arguments: list[bytes]
    environment: dict[bytes, bytes]
    incarnation: bytes  # of the link that gets the call
    talks: bool = False  # a conversation on the agent's socket, not a run


def decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, title: str) -> T:
    """Decode untrusted input. Raises EPROTO, with a message that begins with `title`, if it is invalid."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise Fault("EPROTO", f"{title}: {error}") from None


def travelling(variables: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Returns the variables that a caller may send to a tool on another machine."""
    return {name: value for name, value in variables.items() if name in TRAVELS or name.startswith(b"LC_")}


def check_machine(name: str) -> str:
    """Returns the name, or raises EINVAL with the rule that it breaks."""
    if not _MACHINE.fullmatch(name) or name == ANY:
        why = "1 to 31 small letters, digits and hyphens, and is not any"
        raise Fault("EINVAL", f"a machine's name has {why}, not {name!r}")
    return name


def shown_name(class_: str, name: str, machine: str) -> str:
    """Returns the name here of an object of another machine. Raises EINVAL if it is too long."""
    if class_ == "model":
        provider, _, leaf = name.partition("/")
        return names.check_object(class_, f"{provider}+{machine}/{leaf}")
    return names.check_object(class_, f"{name}+{machine}")
