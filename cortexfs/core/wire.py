"""The bytes between runner, daemon and hosts: a HELLO, then messages of kind, length and payload.

    runner  -> daemon   HELLO, then STDIN
    daemon  -> runner   STDOUT STDERR WANT LAST_WORDS REPLACE EXIT
    daemon  -> host     REQUEST, then STDIN; INPUT QUESTION
    host    -> daemon   DELTA PROGRESS OBSERVER MEDIA EVENT WANT INPUT QUESTION DESCRIPTORS FAULT DONE

Rules: one connection is one run. The asking side cancels by half-closing, and in no other way. STDIN
is sent only after WANT, with at most as many bytes as WANT allows; an empty STDIN ends the input. If
a connection ends before EXIT or DONE, the peer has died. Only the daemon sends descriptors: a peer
that sends any to it is cut off (cortexfs/peers/safe_sockets.py). Numbers are little-endian.
runner/cortexfs-object-runner.c holds the same table in C; a test compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from cortexfs.core.errors import Fault

PROTOCOL = 3  # version 1 sent the working directory, version 2 no CTX_MCP_SESSION
MAGIC = b"CTX1"
SOCKET_NAME = ".run.sock"
BIND_NAME = ".bind/sock"  # where the sockets of objects are bound: users cannot list that folder

# magic, protocol, inode of the object, flags, umask, argc, envc, number of bytes of the strings that follow:
# argc arguments, then envc NAME=VALUE strings, each ending in NUL.
HELLO = struct.Struct("<4sIQIIIII")
TTY_STDIN, TTY_STDOUT, TTY_STDERR = 1, 2, 4
PIPE_STDIN = 8  # sent only if standard error is a terminal
GREETING_SECONDS = 5.0  # for a whole HELLO to arrive
# More than execve(2) can pass (ARG_MAX is a quarter of the stack limit, 6 MiB at most), and more than the
# input that abi.md 4.16 allows.
MAX_STRINGS = 17 << 20
# The pointers count in execve(2), so 6 MiB hold 0.63 million arguments of one character. A runner sends only
# the variables of a table. Counts are limited as strings take time, in which no other caller is served.
MAX_ARGUMENTS = 1 << 20
MAX_VARIABLES = 1 << 10
# A tool may see these of its caller's environment, and LC_*; the runner sends no more (docs/ctx.md).
ENVIRONMENT = frozenset(
    b"PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR TMPDIR"
    b" CTX_OUTPUT CTX_ROOT CTX_MCP_SESSION".split()
)
# Its value is LABEL DEPTH, and no runner sends it: the call is for agents of another machine, has their label
# here, and is nested as deep. Any caller may send it, as it only takes powers away.
UNDER = b"CTX_UNDER"

HEADER = struct.Struct("<BI")
# Larger than any message that we send. A peer that announces more is cut off.
MAX_MESSAGE = 1 << 20
# A text of control characters grows sixfold in JSON, and a frame may have 1 MiB (abi.md 5.4). So a host cuts
# its text into pieces of MAX_TEXT, and none of its messages, except DESCRIPTORS, is over MAX_SAID.
MAX_TEXT = 128 << 10
MAX_SAID = 160 << 10

STDIN = ord("i")  # bytes; empty: end of input

STDOUT = ord("o")  # bytes for standard output
STDERR = ord("e")  # bytes for standard error
WANT = ord("w")  # u32: that many more bytes of standard input may be sent
LAST_WORDS = ord("l")  # u32 length, bytes for stdout, the rest for stderr: printed if the connection breaks
REPLACE = ord("c")  # NUL-ended argv: become this program (the interactive client)
EXIT = ord("x")  # u8 exit status

REQUEST = ord("q")  # msgpack hostcalls.Request
DELTA = ord("d")  # UTF-8 text
PROGRESS = ord("p")  # UTF-8 text
OBSERVER = ord("n")  # msgpack [source or nil, content]
MEDIA = ord("m")  # JSON attachment
EVENT = ord("v")  # JSON of a model's frame: reasoning_delta, tool_call or usage
INPUT = ord("j")  # pieces of JSON, then an empty piece; its answer: empty, or msgpack [changing plugin, JSON]
QUESTION = ord("k")  # JSON hostcalls.ToolQuestion; its answer: JSON hostcalls.ToolAnswer
DESCRIPTORS = ord("t")  # JSON list of hostcalls.Descriptor; in a call, the changed comment of a script
FAULT = ord("f")  # msgpack [code, message]; DONE follows
DONE = ord("z")  # empty, or WORN

WORN = b"\1"  # the host takes no more calls, as leftovers of earlier calls in it would disturb them

U32 = struct.Struct("<I")


class Hello(NamedTuple):
    inode: int
    flags: int
    umask: int
    argc: int
    envc: int
    size: int


def hello(data: bytes) -> Hello:
    """Returns the fixed part of a HELLO. Raises EINVAL, EPROTO or EMSGSIZE, and never struct.error."""
    if len(data) != HELLO.size:
        raise Fault("EINVAL", "the greeting is cut short")
    magic, protocol, *rest = HELLO.unpack(data)
    if magic != MAGIC:
        raise Fault("EINVAL", "this socket speaks to cortexfs-object-runner only")
    if protocol != PROTOCOL:
        raise Fault("EPROTO", f"the runner speaks protocol {protocol}, this daemon {PROTOCOL}")
    greeting = Hello(*rest)
    if greeting.size > MAX_STRINGS:
        raise Fault("EMSGSIZE", "the arguments and environment are over 17 MiB")
    if greeting.argc > MAX_ARGUMENTS or greeting.envc > MAX_VARIABLES:
        raise Fault("EMSGSIZE", "the greeting has more arguments or variables than execve(2) can pass")
    if greeting.argc + greeting.envc > greeting.size:
        raise Fault("EINVAL", "the greeting counts more strings than it holds")
    return greeting


def strings(greeting: Hello, data: bytes) -> tuple[list[bytes], list[bytes]]:
    """Returns arguments and environment from the bytes that follow a HELLO."""
    if data.count(b"\0") != greeting.argc + greeting.envc or data[-1:] not in (b"", b"\0"):
        raise Fault("EINVAL", "the greeting does not hold the strings that it counts")
    parts = data.split(b"\0")[:-1]
    return parts[: greeting.argc], parts[greeting.argc :]


def is_passed_on(name: bytes) -> bool:
    """Returns True if tools get a variable of that name from their caller."""
    return name in ENVIRONMENT or name.startswith(b"LC_")


def passed_on(variables: Iterable[bytes]) -> dict[bytes, bytes]:
    """Returns the variables of a caller (NAME=VALUE) that tools get."""
    found = dict([variable.partition(b"=")[::2] for variable in variables])
    if found.keys() <= ENVIRONMENT:
        return found
    return {name: value for name, value in found.items() if is_passed_on(name)}


def under(variables: Iterable[bytes]) -> str:
    """Returns the value of UNDER, or nothing if the caller did not send it."""
    start = UNDER + b"="
    found = [variable for variable in variables if variable.startswith(start)]
    return found[0].removeprefix(start).decode(errors="replace") if found else ""


def message(kind: int, payload: bytes | memoryview = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


class Splitter:
    """Makes whole messages of bytes, in order, and never holds more than one message."""

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def clean(self) -> bool:
        """Returns True if the peer is between messages."""
        return not self._buffer

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[int, bytes]]:
        buffer = self._buffer
        buffer += data
        out: list[tuple[int, bytes]] = []
        start, end = 0, len(buffer)
        while end - start >= HEADER.size:
            kind, size = HEADER.unpack_from(buffer, start)
            if size > self._limit:
                raise Fault("EPROTO", f"a message of {size} bytes is over the limit")
            stop = start + HEADER.size + size
            if stop > end:
                break
            out.append((kind, bytes(memoryview(buffer)[start + HEADER.size : stop])))
            start = stop
        del buffer[:start]
        return out
