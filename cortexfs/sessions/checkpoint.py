"""The facts about a long log, kept beside it, so that opening the log reads only its newer part.

Rules: the log is the only truth, and this file may go at any time. It is believed only if this version of the
package wrote it, and only for the very file that it names, if that begins and ends as it did. Nothing is in
it that is not on disk in the log. The state of the log's user is only bytes here. These calls block: they
belong in a thread.
This file must never know what a session is.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from contextlib import suppress
from pathlib import Path

import msgspec

from cortexfs.sessions import disk
from cortexfs.sessions.log_facts import Scanned
from cortexfs.state.whole_files import private
from cortexfs.version import VERSION

NAME = ".checkpoint"  # beside the log, in no listing
STEP = 16 << 20  # bytes of a log that are worth a checkpoint: to read them takes a tenth of a second
_ENDS = 64 << 10  # bytes at each end by which a log is recognised


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    version: str
    inode: int
    ends: bytes
    scanned: Scanned
    state: bytes  # the state of the log's user at that place


_encoder = msgspec.msgpack.Encoder(enc_hook=array.tobytes)
_decoder = msgspec.msgpack.Decoder(
    Checkpoint,
    dec_hook=lambda _, data: array("q", memoryview(data).tobytes()),  # raises if they are no bytes
)


def write(folder: Path, log: int, scanned: Scanned, state: bytes) -> None:
    """Keep the facts about a log, a descriptor, up to `scanned.size`."""
    checkpoint = Checkpoint(VERSION, os.fstat(log).st_ino, _ends(log, scanned.size), scanned, state)
    disk.replace(folder / NAME, [_encoder.encode(checkpoint)])


def read(folder: Path, log: int) -> Checkpoint | None:
    """Returns the checkpoint, or None if there is none that can be believed."""
    with suppress(OSError, msgspec.MsgspecError), open(folder / NAME, "rb", opener=private) as file:
        checkpoint = _decoder.decode(file.read())
        if (checkpoint.version, checkpoint.inode) == (VERSION, os.fstat(log).st_ino):
            return checkpoint if checkpoint.ends == _ends(log, checkpoint.scanned.size) else None
    return None


def _ends(log: int, size: int) -> bytes:
    last = max(0, size - _ENDS)
    return hashlib.sha256(os.pread(log, _ENDS, 0) + os.pread(log, size - last, last)).digest()
