"""The first answer of `ctx mcp serve` on standard output, before the SDK is there: its import takes longer
than clients like to wait.

Main path: `early` reads the first line. If it is a greeting, it is answered. `GreetedInput` has the SDK hear
it as well, and `GreetedOutput` drops what the SDK answers.

Rules: what is answered is what the SDK would say, which a test compares. A greeting that is in any way odd is
left to the SDK.
This file must never know the SDK.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

from cortexfs.core.jsontext import UNREADABLE
from cortexfs.version import VERSION

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # those with a handshake
MAX_LINE = 64 << 10
INFO = {"name": "cortexfs", "title": "CortexFS", "version": VERSION}
TOOLS = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": False}}
PROMPTS = {"prompts": {"listChanged": False}, "completions": {}}


class _Client(msgspec.Struct):
    name: str
    version: str


class _Params(msgspec.Struct):
    protocolVersion: str
    capabilities: dict[str, Any]
    clientInfo: _Client


class _Greeting(msgspec.Struct, tag="initialize", tag_field="method"):
    jsonrpc: str
    id: int | str
    params: _Params


class _Answer(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None


class Greeted(NamedTuple):
    """The first line, and the number of the greeting that was answered; None if it was none."""

    line: bytes
    id: int | str | None = None

    def is_answer(self, text: str) -> bool:
        """Returns True for the SDK's answer to it."""
        if self.id is None:
            return False
        said = msgspec.json.decode(text, type=_Answer)
        return said.method is None and said.id == self.id


def early(has_prompts: bool) -> Greeted:
    """Read the first line of standard input, and no byte more; answer it if it is a greeting."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < MAX_LINE and (byte := os.read(0, 1)):
        line += byte
    try:
        asked = msgspec.json.decode(line, type=_Greeting)
    except UNREADABLE:
        return Greeted(bytes(line))
    version = asked.params.protocolVersion
    if asked.jsonrpc != "2.0" or version not in VERSIONS:
        return Greeted(bytes(line))
    can = TOOLS | (PROMPTS if has_prompts else {})
    result = {"protocolVersion": version, "capabilities": can, "serverInfo": INFO}
    answer = msgspec.json.encode({"jsonrpc": "2.0", "id": asked.id, "result": result}) + b"\n"
    while answer:
        answer = answer[os.write(1, answer) :]
    return Greeted(bytes(line), asked.id)


class GreetedInput:
    """The lines of standard input, from the first one on."""

    def __init__(self, greeted: Greeted) -> None:
        self._first = greeted.line.decode(errors="replace")
        self._rest = os.fdopen(
            _moved(0, os.open(os.devnull, os.O_RDONLY)), encoding="utf-8", errors="replace"
        )

    def readline(self) -> str:
        first, self._first = self._first, ""
        return first or self._rest.readline()


class GreetedOutput:
    """Standard output, without the second answer to the greeting."""

    def __init__(self, greeted: Greeted) -> None:
        self._greeted = greeted
        self._file = os.fdopen(_moved(1, os.dup(2)), "w", encoding="utf-8")

    def write(self, text: str) -> None:
        if self._greeted.is_answer(text):
            self._greeted = Greeted(b"")
        else:
            self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


def _moved(number: int, instead: int) -> int:
    """A descriptor of its own for a standard stream, in whose place another stands: nothing that a program
    prints by mistake is to be heard by the client."""
    moved = os.dup(number)
    os.dup2(instead, number)
    os.close(instead)
    return moved
