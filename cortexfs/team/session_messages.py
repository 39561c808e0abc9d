"""The messages between a daemon and its link about sessions of the team, and the line that names an owner.

They go over a stream of their own, as messages of core/wire.py. The daemon has the logs; the link has the
team's stream. Neither sends data that the other can read itself: of a log that is to be stored, the link gets
only the length.

Rules: nothing here imports packages that only members of a team have, as the daemon imports this.
This file must never know the carrier of a message between machines.
"""

from __future__ import annotations

import math
import re
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
import trio

from cortexfs.core import wire
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.peers import safe_sockets
from cortexfs.peers.streams import receive, send
from cortexfs.team import messages

OWNER = b'{"type":"owner"'
PIECE = 512 << 10  # bytes of a log in one message, unless one line is longer
MOST = MAX_LINE + PIECE
_MESSAGE = 0  # the only kind on this stream
_ID = re.compile(rb'"id":"([1-9][0-9]{0,17})"')


class SessionOpening(msgspec.Struct, frozen=True, array_like=True, tag="sessions"):
    """The daemon's message that this stream is for the messages below."""


class OwnerLine(msgspec.Struct, frozen=True, tag_field="type", tag="owner"):
    """A line of a log: from here on the session belongs to that machine."""

    id: str
    machine: str
    epoch: int
    user: str  # the user of the session, where it was begun
    by: str  # the user who began or took it, on that machine
    may: list[str]  # USER@MACHINE may take it, !USER@MACHINE may not; the first that fits decides
    proof: str  # the machine's signature

    @property
    def signed(self) -> bytes:
        return msgspec.msgpack.encode([self.id, self.machine, self.epoch, self.user, self.by, self.may])


class LogPlace(msgspec.Struct, frozen=True, array_like=True):
    """A session, by its name on this machine."""

    uid: int
    class_: str
    object: str
    session: str


# From the daemon.
class LocalLog(msgspec.Struct, frozen=True, array_like=True, tag="log"):
    """So many bytes of this machine's own log are on its disk, and have to be stored."""

    place: LogPlace
    path: str
    size: int
    after: int  # the last LogPart that the daemon took in before


class TakeLog(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    number: int
    place: LogPlace
    by_force: bool


class KeptHere(msgspec.Struct, frozen=True, array_like=True, tag="kept"):
    """All pieces before that mark are on the disk."""

    mark: int


class MissingPieces(msgspec.Struct, frozen=True, array_like=True, tag="missing"):
    """The log here ends before that piece."""

    place: LogPlace


class LogRemoved(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """The session was removed on the machine that has it."""

    place: LogPlace


# From the link.
class LogPart(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """A part of a session's log from the team. Without data, the session was removed."""

    place: LogPlace
    number: int
    start: int
    data: bytes


class PiecesMark(msgspec.Struct, frozen=True, array_like=True, tag="mark"):
    number: int


class LogStored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """So many bytes of this machine's own log are stored."""

    place: LogPlace
    size: int


class LogTaken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """The answer to a TakeLog."""

    number: int
    code: str
    message: str


class StreamState(msgspec.Struct, frozen=True, array_like=True, tag="stream"):
    """The team's stream is reachable, or `problem` tells why not."""

    problem: str


FromDaemon: TypeAlias = LocalLog | TakeLog | KeptHere | MissingPieces | LogRemoved
ToDaemon: TypeAlias = LogPart | PiecesMark | LogStored | LogTaken | StreamState

FROM_DAEMON: msgspec.msgpack.Decoder[FromDaemon] = msgspec.msgpack.Decoder(FromDaemon)
TO_DAEMON: msgspec.msgpack.Decoder[ToDaemon] = msgspec.msgpack.Decoder(ToDaemon)
_pack = msgspec.msgpack.Encoder().encode
_owners = msgspec.json.Decoder(OwnerLine)


class SessionChannel:
    """One end of the stream between a daemon and its link."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        end.setblocking(False)
        self._end = end
        self._decoder = decoder
        self._splitter = wire.Splitter(2 * MOST)
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._say, self._packets = trio.open_memory_channel[bytes](math.inf)

    def tell(self, message: FromDaemon | ToDaemon) -> None:
        self._say.send_nowait(wire.message(_MESSAGE, _pack(message)))

    async def send(self) -> None:
        """Send until the other end is gone, which `receive` reports."""
        with suppress(OSError):
            async for data in self._packets:
                await send(self._end, data)

    async def receive(self) -> Any:
        """Returns the next message, or None when the other end is gone."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            try:
                data = await receive(self._end)
            except OSError:
                return None
            if not data:
                return None
            self._waiting += self._splitter.feed(data)
        _, data = self._waiting.popleft()
        return messages.decoded(self._decoder, data, "a session's message is not valid")

    def close(self) -> None:
        safe_sockets.close(self._end)


def owner_of(line: bytes) -> OwnerLine | None:
    """Returns the owner that a line names, or None for another line."""
    if not line.startswith(OWNER):
        return None
    try:
        return _owners.decode(line)
    except UNREADABLE:
        raise Fault("EPROTO", "the line about a session's owner cannot be read") from None


def owners_in(data: bytes) -> Iterator[OwnerLine]:
    at = 0 if data.startswith(OWNER) else data.find(b"\n" + OWNER) + 1
    while at or data.startswith(OWNER):
        end = data.index(b"\n", at)
        if found := owner_of(data[at:end]):
            yield found
        if not (at := data.find(b"\n" + OWNER, end) + 1):
            return


def last_id(data: bytes) -> int:
    """Returns the id of the last of these lines."""
    found = _ID.search(data, data.rfind(b"\n", 0, -1) + 1)
    return int(found[1]) if found else 0


def origin_of(session: str) -> str:
    """Returns the machine where a session of the team was begun, by its name; empty for any other session."""
    _, plus, machine = session.rpartition("+")
    return machine if plus else ""
