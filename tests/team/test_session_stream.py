"""The link's side of a team's sessions, with a stream in memory: the daemon's messages that count."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any, cast

import trio

from cortexfs.team import keys, subjects
from cortexfs.team.mapping import Mapping
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.places import TeamPlaces
from cortexfs.team.session_log import REMOVED, piece_of
from cortexfs.team.session_messages import (
    KeptHere,
    LocalLog,
    LogPart,
    LogPlace,
    LogRemoved,
    LogStored,
    LogTaken,
    PiecesMark,
    SessionChannel,
    StreamState,
    TakeLog,
)
from cortexfs.team.session_stream import SessionStream

PLACE = LogPlace(os.getuid(), "agent", "coder", "plan+laptop")
SAID = b'{"type":"delta","id":"2","run":"r","text":"soon"}\n'
AGAIN = b'{"type":"delta","id":"2","run":"r","text":"again"}\n'


class StreamInMemory:
    """A client of NATS that answers the requests about a stream."""

    name = "laptop"

    def __init__(self) -> None:
        self.key = keys.Key.new(keys.USER)
        self.messages: list[Delivery] = []
        self.is_full = False

    def subscribe(self, subject: str, hear: object) -> None: ...

    def publish(self, subject: str, data: bytes) -> None: ...

    async def request(self, subject: str, data: bytes, **how: Any) -> list[Delivery]:
        await trio.lowlevel.checkpoint()
        if subject == subjects.LOG_INFO:
            return [_answer(created="once", state={"last_seq": len(self.messages)})]
        if subject == subjects.LOG_GET:
            asked = json.loads(data)
            wanted = asked["next_by_subj"]
            found = self.messages[asked["seq"] - 1 :]
            if wanted != "ctx.log.>":
                found = [each for each in found if _fits(each, wanted)]
            return [*found, Delivery("", "", "", "404", {}, b"")]
        last = max(
            (_number(each) for each in self.messages if _fits(each, how["headers"][_FILTER])), default=0
        )
        if self.is_full:
            return [_answer(error={"err_code": 10077, "description": "no space"})]
        if str(last) != how["headers"][_LAST]:
            return [_answer(error={"err_code": 10071, "description": "wrong last sequence"})]
        number = len(self.messages) + 1
        headers = {"Nats-Subject": subject, "Nats-Sequence": str(number)}
        self.messages.append(Delivery(subject, "", "", "", headers, data))
        return [_answer(seq=number)]

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        said = (piece_of(keys.unsealed(each.data)) for each in self.messages)
        return [(piece.start, piece.data) for piece in said]


_LAST = "Nats-Expected-Last-Subject-Sequence"
_FILTER = f"{_LAST}-Subject"


def _answer(**fields: object) -> Delivery:
    return Delivery("", "", "", "", {}, json.dumps(fields).encode())


def _number(one: Delivery) -> int:
    return int(one.headers["Nats-Sequence"])


def _fits(one: Delivery, wanted: str) -> bool:
    return one.headers["Nats-Subject"].split(".")[3:] == wanted.split(".")[3:]


class DaemonSide:
    """The daemon's end of the channel: a test sends its messages, and reads the messages to it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._news = trio.Event()
        self._say, self._said = trio.open_memory_channel[Any](100)

    def tell(self, said: object) -> None:
        if isinstance(said, PiecesMark):
            self.say(KeptHere(said.number))
        else:
            self.told.append(said)
            self._news.set()

    def say(self, said: object) -> None:
        self._say.send_nowait(said)

    async def send(self) -> None: ...

    async def receive(self) -> Any:
        return await self._said.receive()

    async def hear(self, kind: type) -> Any:
        """Returns the next message of that kind, and drops the messages before it."""
        while True:
            while self.told:
                said = self.told.pop(0)
                if isinstance(said, kind):
                    return said
            self._news = trio.Event()
            await self._news.wait()


def _linked(tmp_path: Path, client: StreamInMemory) -> SessionStream:
    mapping, cursor = Mapping(TeamPlaces(tmp_path, tmp_path)), tmp_path / "cursor"
    public = client.key.public_raw
    found = SessionStream(cast(Client, client), mapping, cursor, lambda _: public, lambda _: True)
    found.met.set()
    return found


async def test_a_word_from_before_the_last_part_does_not_count(tmp_path: Path) -> None:
    # abi.md 14.19: a session that was removed and begun anew has nothing of the one before
    client, daemon, path = StreamInMemory(), DaemonSide(), tmp_path / "events.jsonl"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_linked(tmp_path, client).serve, cast(SessionChannel, daemon))
        await daemon.hear(StreamState)
        daemon.say(TakeLog(1, PLACE, False))
        part = await daemon.hear(LogPart)
        assert (await daemon.hear(LogTaken)).code == ""
        path.write_bytes(part.data + SAID)
        old = LocalLog(PLACE, str(path), path.stat().st_size, part.number)
        daemon.say(old)
        assert (await daemon.hear(LogStored)).size == old.size

        daemon.say(LogRemoved(PLACE))
        daemon.say(TakeLog(2, PLACE, False))
        removed, begun = await daemon.hear(LogPart), await daemon.hear(LogPart)
        assert (removed.data, begun.start) == (b"", 0)
        daemon.say(old)  # sent before the daemon has learnt of the removal
        assert (await daemon.hear(LogTaken)).code == ""
        path.write_bytes(begun.data + AGAIN)
        daemon.say(LocalLog(PLACE, str(path), path.stat().st_size, begun.number))
        assert (await daemon.hear(LogStored)).size == path.stat().st_size
        nursery.cancel_scope.cancel()
    starts = [start for start, _ in client.pieces]
    assert starts == [0, len(part.data), REMOVED, 0, len(begun.data)]
    assert [data for _, data in client.pieces] == [part.data, SAID, b"", begun.data, AGAIN]


async def test_a_server_that_keeps_nothing_more_is_told(tmp_path: Path) -> None:
    # abi.md 14.16
    client, daemon, path = StreamInMemory(), DaemonSide(), tmp_path / "events.jsonl"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_linked(tmp_path, client).serve, cast(SessionChannel, daemon))
        daemon.say(TakeLog(1, PLACE, False))
        part = await daemon.hear(LogPart)
        await daemon.hear(LogTaken)
        path.write_bytes(part.data + SAID)
        client.is_full = True
        daemon.say(LocalLog(PLACE, str(path), path.stat().st_size, part.number))
        while (
            await daemon.hear(StreamState)
        ).problem != "the team's server cannot store the message: no space":
            pass  # states of a stream that is not read yet come first
        client.is_full = False
        assert (await daemon.hear(StreamState)).problem == ""
        assert (await daemon.hear(LogStored)).size == path.stat().st_size
        nursery.cancel_scope.cancel()
    assert pwd.getpwuid(os.getuid()).pw_name in part.data.decode()
