"""A record of what is said over sockets, for whoever develops CortexFS: CTX_TRACE=wire,calls ctx mount DIR

`wire` is what runners and clients of a `.sock` say and hear, `calls` what hosts do. Each piece is a line of
JSON in `trace.jsonl` of the state: when, with whom, which way, how many bytes, and the first of them.

Rules: what users and tools say stands there, so it is its owner's alone, and nobody has it who did not ask.
Whoever sends or receives looks whether there is a recorder; where nothing is traced, that is all it costs.
This file must never know what a message means.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from cortexfs.core.errors import Fault

FILE = "trace.jsonl"
SHOWN = 4 << 10  # bytes of a piece
MOST = 64 << 20  # bytes of the file

# Called with the other end, "said" or "heard" by the daemon, and the bytes.
Recorder: TypeAlias = Callable[[str, str, bytes | bytearray | memoryview], None]

wire: Recorder | None = None
calls: Recorder | None = None


class Piece(msgspec.Struct):
    at: float
    over: str
    peer: str
    way: str
    bytes: int
    text: str  # each byte is the character of its number


def begin(words: str, state: Path) -> None:
    """Record what these words name, until the daemon ends. Raises Fault EINVAL for another word."""
    global wire, calls
    wanted = {word.strip() for word in words.split(",")} - {""}
    if unknown := sorted(wanted - {"wire", "calls"}):
        raise Fault("EINVAL", f"CTX_TRACE: {unknown[0]!r} is nothing that can be traced; wire and calls are")
    if wanted:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = _File(os.open(state / FILE, flags, 0o600))
        wire = file.recorder("wire") if "wire" in wanted else None
        calls = file.recorder("calls") if "calls" in wanted else None


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._left = MOST
        self._encode = msgspec.json.Encoder().encode_lines

    def recorder(self, over: str) -> Recorder:
        def record(peer: str, way: str, data: bytes | bytearray | memoryview) -> None:
            text = bytes(data[:SHOWN]).decode("latin-1")
            self._write(Piece(time.time(), over, peer, way, len(data), text))

        return record

    def _write(self, piece: Piece) -> None:
        line = self._encode([piece])
        if len(line) <= self._left:
            os.write(self._descriptor, line)
        elif self._left:
            os.write(self._descriptor, b'{"over":"the file is full; mount again to begin anew"}\n')
        self._left -= min(self._left, len(line))
