"""The daemon's side of a team's sessions: a stream that is away for too long, and a hostile log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio

from cortexfs.core.errors import Fault
from cortexfs.daemon.team_sessions import TeamSessions
from cortexfs.sessions import disk
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.log_facts import Scan
from cortexfs.talk.conversations import Conversations
from cortexfs.team import keys
from cortexfs.team.places import TeamPlaces
from cortexfs.team.session_log import LogKey, TeamLog, owner_line
from cortexfs.team.session_messages import KeptHere, LogPart, LogPlace, PiecesMark, SessionChannel
from tests.shell.session_stores import store

HERE = Address(Space.private(0), "agent", "coder", "plan+laptop")
EVENT = b'{"type":"delta","id":"2","run":"r","text":"x"}\n'


class OnLaptop(TeamPlaces):
    """A member of a team that knows only its machine's name."""

    is_joined = True

    def read_member(self) -> Any:
        return self

    machine = "laptop"


class Followed:
    """Conversations that have one live session, and record its loss."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def live(self, address: Address) -> Address | None:
        return address if address == HERE else None

    def lose(self, live: Address, fault: Fault) -> None:
        self.faults.append(fault)


async def test_what_waits_for_a_stream_that_is_away_is_told_so(tmp_path: Path) -> None:
    # abi.md 14.16: also where no link has come up at all
    followed = Followed()
    key = LogKey("root", HERE.class_, HERE.object, HERE.session)
    first = owner_line(keys.Key.new(keys.USER), TeamLog(key), "laptop", "root", [], 1)
    async with store(tmp_path) as sessions, trio.open_nursery() as nursery:
        places = OnLaptop(tmp_path, tmp_path)
        team = TeamSessions(places, sessions, cast(Conversations, followed))
        log = await sessions.open(HERE)
        log.append([first])
        await log.durable(1)
        team.judge(log)
        assert log.mirror is not None
        log.append([EVENT])
        nursery.start_soon(team.give_up, 0.0)
        with pytest.raises(Fault, match="did not store the message") as told:
            await log.durable(2)
        assert told.value.code == "EHOSTDOWN"
        assert followed.faults
        assert log.read(0, log.size) == first + EVENT  # the event stays here, and is stored later
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"message","id":"2","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"type":"start","id":"2","run":7}\n',
        b'{"type":"start"}\n',
        b"{}\n",
    ],
)
async def test_a_line_of_another_machine_that_is_no_event_is_left(tmp_path: Path, line: bytes) -> None:
    # abi.md 14.20: the daemon goes on, and keeps what was good
    theirs = Address(HERE.space, HERE.class_, HERE.object, "plan+evil")
    key = LogKey("root", theirs.class_, theirs.object, theirs.session)
    first = owner_line(keys.Key.new(keys.USER), TeamLog(key), "evil", "root", [], 1)
    place = LogPlace(0, theirs.class_, theirs.object, theirs.session)
    async with store(tmp_path) as sessions:
        team = TeamSessions(OnLaptop(tmp_path, tmp_path), sessions, cast(Conversations, Followed()))
        channel = cast(SessionChannel, None)
        await team._hear(LogPart(place, 1, 0, first), channel)
        await team._hear(LogPart(place, 2, len(first), line), channel)
        await team._hear(LogPart(place, 3, len(first), EVENT), channel)
        log = await sessions.open(theirs)
        await log.durable(2)
        assert log.read(0, log.size) == first + EVENT


async def test_a_log_that_is_told_again_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 14.17. Found: each part read all of the log, so that a machine came back after minutes
    theirs = Address(HERE.space, HERE.class_, HERE.object, "plan+box")
    key = LogKey("root", theirs.class_, theirs.object, theirs.session)
    first = owner_line(keys.Key.new(keys.USER), TeamLog(key), "box", "root", [], 1)
    lines = [first, *(EVENT.replace(b'"2"', b'"%d"' % number) for number in range(2, 100))]
    place, channel = LogPlace(0, theirs.class_, theirs.object, theirs.session), cast(SessionChannel, Marks())
    async with store(tmp_path) as sessions:
        team = TeamSessions(OnLaptop(tmp_path, tmp_path), sessions, cast(Conversations, Followed()))
        await team._hear(LogPart(place, 1, 0, b"".join(lines)), channel)
        await team._hear(PiecesMark(1), channel)
    reads = 0
    scan = disk.scan

    def counted(*arguments: Any) -> Scan:
        nonlocal reads
        reads += 1
        return scan(*arguments)

    monkeypatch.setattr(disk, "scan", counted)
    async with store(tmp_path) as sessions:
        team = TeamSessions(OnLaptop(tmp_path, tmp_path), sessions, cast(Conversations, Followed()))
        start = 0
        for number, line in enumerate(lines, 1):
            await team._hear(LogPart(place, number, start, line), channel)
            start += len(line)
        assert reads == 1
        await team._hear(PiecesMark(2), channel)
        assert not team._held


class Marks:
    def tell(self, said: object) -> None:
        """The link learns that the daemon has kept all pieces."""
        assert isinstance(said, KeptHere)
