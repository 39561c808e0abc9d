"""A record of the bytes over sockets, for developers of CortexFS: CTX_TRACE=wire,calls ctx mount DIR

`wire` records runners and clients of a `.sock`, `calls` records hosts. Each piece is a line of JSON in
`trace.jsonl` of the state: the time, the peer, the direction, the number of bytes, and the first of them.

Rules: the record holds data of users and tools, so only its owner can read it, and it exists only on request.
Code that sends or receives checks for a recorder; that is the whole cost where nothing is traced.
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

# Called with the peer, the daemon's direction ("said" or "heard"), and the bytes.
Recorder: TypeAlias = Callable[[str, str, bytes | bytearray | memoryview], None]

wire: Recorder | None = None
calls: Recorder | None = None


class Piece(msgspec.Struct):
    at: float
    over: str
    peer: str
    way: str
    bytes: int
    text: str  # Latin-1: each byte as one character


def begin(words: str, state: Path) -> None:
    """Record what these words name, until the daemon ends. Raises Fault EINVAL for an unknown word."""
    global wire, calls
    names = {word.strip() for word in words.split(",")} - {""}
    if unknown := sorted(names - {"wire", "calls"}):
        raise Fault("EINVAL", f"CTX_TRACE: {unknown[0]!r} cannot be traced; write wire, calls or wire,calls")
    if names:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = _File(os.open(state / FILE, flags, 0o600))
        wire = file.recorder("wire") if "wire" in names else None
        calls = file.recorder("calls") if "calls" in names else None


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = MOST
        self._encode = msgspec.json.Encoder().encode_lines

    def recorder(self, over: str) -> Recorder:
        def record(peer: str, way: str, data: bytes | bytearray | memoryview) -> None:
            text = bytes(data[:SHOWN]).decode("latin-1")
            self._write(Piece(time.time(), over, peer, way, len(data), text))

        return record

    def _write(self, piece: Piece) -> None:
        line = self._encode([piece])
        if len(line) <= self._room:
            os.write(self._descriptor, line)
        elif self._room:
            os.write(self._descriptor, b'{"over":"the file is full; mount again to begin anew"}\n')
        self._room -= min(self._room, len(line))
