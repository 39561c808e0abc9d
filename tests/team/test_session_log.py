"""The pieces that any machine may put into the stream of sessions, and the pieces that count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.team import keys, session_reading
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.session_log import REMOVED, LogKey, StreamPiece, TeamLog, owner_line
from cortexfs.team.session_reading import LogStore, TeamLogs

KEY = LogKey("alice", "agent", "coder", "plan+laptop")
KEYS = {name: keys.Key.new(keys.USER) for name in ("laptop", "box", "evil")}
MAY = ["!bob@box", "*@box"]
EVENT = b'{"type":"delta","id":"%d","run":"r","text":"x"}\n'


def key_of(machine: str) -> bytes:
    return KEYS[machine].public_raw


def line(log: TeamLog, machine: str, by: str = "alice", may: list[str] = MAY, key: str = "") -> bytes:
    return owner_line(KEYS[key or machine], log, machine, by, may, log.last_id + 1)


def take(log: TeamLog, machine: str, start: int, data: bytes, stamp: int = 1) -> None:
    log.take(machine, StreamPiece(start, data), key_of, stamp)


def refused(log: TeamLog, machine: str, start: int, data: bytes, stamp: int = 1) -> None:
    before = (log.machine, log.epoch, log.size, log.may)
    with pytest.raises(Fault):
        take(log, machine, start, data, stamp)
    assert (log.machine, log.epoch, log.size, log.may) == before


@pytest.fixture
def log() -> TeamLog:
    """A session that laptop has begun, with two events."""
    log = TeamLog(KEY)
    take(log, "laptop", 0, line(log, "laptop") + EVENT % 2)
    return log


def test_pieces_follow_each_other_and_are_their_owner_s(log: TeamLog) -> None:
    # abi.md 14.20
    size = log.size
    take(log, "laptop", size, EVENT % 3)
    refused(log, "laptop", size, EVENT % 3)  # a duplicate
    refused(log, "laptop", log.size + 1, EVENT % 4)
    refused(log, "laptop", log.size, b"no event")
    refused(log, "evil", log.size, EVENT % 4)
    refused(log, "box", log.size, EVENT % 4)
    assert log.last_id == 3


def test_it_is_begun_where_its_name_says() -> None:
    # abi.md 14.18
    log = TeamLog(KEY)
    refused(log, "laptop", 0, EVENT % 1)
    refused(log, "evil", 0, line(log, "evil"))
    refused(log, "evil", 0, line(log, "laptop", key="evil"))
    refused(log, "laptop", 0, line(log, "laptop", by="bob"))
    refused(log, "evil", 0, line(log, "laptop", may=[]))  # laptop's line, sent by a machine without access
    take(log, "laptop", 0, line(log, "laptop"))


def test_it_is_taken_by_whom_its_first_line_names(log: TeamLog) -> None:
    # abi.md 14.17, 14.18
    at = log.size
    refused(log, "evil", at, line(log, "evil"))
    refused(log, "box", at, line(log, "box", by="bob"))
    refused(log, "box", at, line(log, "box", may=["*@*"]))
    refused(log, "evil", at, line(log, "box"))
    late = line(log, "box")
    take(log, "box", at, line(log, "box") + EVENT % 9)
    assert (log.machine, log.epoch) == ("box", 2)
    refused(log, "laptop", log.size, EVENT % 10)  # the former owner comes back late
    refused(log, "box", log.size, late)  # a line of another epoch
    take(log, "laptop", log.size, line(log, "laptop"))
    refused(log, "box", log.size, EVENT % 20)


def test_a_lost_stream_is_repaired_by_who_may_have_it(log: TeamLog) -> None:
    # abi.md 14.21
    first = line(TeamLog(KEY), "laptop") + EVENT % 2
    second = line(log, "box") + EVENT % 4
    anew = TeamLog(KEY)
    refused(anew, "evil", 0, first + second)
    take(anew, "box", 0, first + second)
    assert (anew.machine, anew.epoch, anew.size) == ("box", 2, len(first + second))


def test_only_who_has_it_removes_it_and_for_good(log: TeamLog) -> None:
    # abi.md 14.19
    refused(log, "box", REMOVED, b"")
    take(log, "laptop", REMOVED, b"", 5)
    assert (log.machine, log.size) == ("", 0)
    refused(log, "laptop", 0, line(log, "laptop"), 4)  # the server sends it again
    take(log, "laptop", 0, line(log, "laptop"), 6)


@pytest.mark.parametrize("subject", ["ctx.log.box.a=40b.agent.x", "ctx.log.box.ab.agent.x.y=2Blaptop", "x"])
def test_a_subject_that_is_no_session_s_is_left(subject: str) -> None:
    with pytest.raises(Fault):
        LogKey.of(subject)


def test_a_subject_tells_the_session() -> None:
    assert LogKey.of(KEY.subject("box")) == ("box", KEY)


@pytest.mark.parametrize("proof", ["\u00e9", "", "=", "AAAA", "\ud7ff" * 100])
def test_a_proof_that_is_none_is_refused_and_ends_nothing(log: TeamLog, proof: str) -> None:
    # abi.md 14.18: such a piece stays in the stream, so that it would end the link of each machine for ever
    owner = msgspec.json.decode(line(log, "box", by="bob"))
    refused(log, "box", log.size, msgspec.json.encode({**owner, "proof": proof}) + b"\n")


async def test_one_machine_takes_no_others_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 14.22
    monkeypatch.setattr(session_reading, "MAX_OF_ONE", 2)
    stream = SimpleNamespace(get=nothing)
    logs = TeamLogs(cast(LogStore, stream), tmp_path / "cursor", key_of, lambda *_: None)
    for number in range(4):
        for machine in ("evil", "laptop"):
            if machine == "evil" or number < 2:
                key = KEY._replace(session=f"{machine}{number}+laptop")
                await logs._take_in(Delivery(key.subject(machine), "1", "", "", {}, b""))
    assert [key.session for key in logs.logs] == [
        f"{machine}{number}+laptop" for number in range(2) for machine in ("evil", "laptop")
    ]


async def nothing(filter_: str, first: int) -> list[Delivery]:
    return []


async def test_a_log_that_did_not_come_whole_is_read_on_and_has_no_gap(tmp_path: Path) -> None:
    # abi.md 14.20: whoever takes a session cuts off what its own log lacks
    log, said = TeamLog(KEY), list[Delivery]()
    for number, data in enumerate((line(log, "laptop") + EVENT % 2, EVENT % 3, EVENT % 4), 1):
        piece = msgspec.msgpack.encode(StreamPiece(log.size, data))
        sealed = keys.seal(KEYS["laptop"], subject := KEY.subject("laptop"), piece)
        said.append(Delivery(subject, "1", "", "", {"Nats-Sequence": str(number)}, sealed))
        take(log, "laptop", log.size, data)
    answers: list[list[Delivery] | Fault] = [
        said[:1],  # the answer to a request for all messages
        said[:1], Fault("ETIMEDOUT", "the team's server has not answered"),  # to requests for this session
        said, said[1:2], Fault("EHOSTDOWN", "the team's server is away"),
        said, said[2:], [],
    ]  # fmt: skip

    async def get(filter_: str, first: int) -> list[Delivery]:
        answer = answers.pop(0)
        if isinstance(answer, Fault):
            raise answer
        return answer

    counted: list[bytes] = []
    stream = cast(LogStore, SimpleNamespace(get=get))
    logs = TeamLogs(stream, tmp_path / "cursor", key_of, lambda _, __, piece: counted.append(piece.data))
    for _ in range(2):
        with pytest.raises(Fault):
            await logs.catch_up()
    assert await logs.catch_up() == 3
    assert (logs.logs[KEY].size, answers) == (log.size, [])
    assert b"".join(counted).endswith(EVENT % 2 + EVENT % 3 + EVENT % 4)
