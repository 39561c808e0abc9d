"""recent.py: the kept events of a user, for how long, and the processes that are told (abi.md 1.27)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.hooks import recent
from cortexfs.hooks.recent import RecentEvents

ME, OTHER = Identity(1, 1, ()), Identity(2, 2, ())
EVENT = b'{"type":"session:start","sessionId":"one"}'


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(said: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in said.splitlines()]


async def numbers(made: RecentEvents, after: int, who: Identity = ME) -> list[int]:
    return [one["number"] for one in lines(await made.answer(who, [b"%d" % after]))]


async def test_events_are_kept_from_the_first_reading_on() -> None:
    made = RecentEvents(first=5)
    made.add("ear", 1, EVENT)
    assert lines(await made.answer(ME, [])) == [{"number": 4}]
    made.add("ear", 1, EVENT)
    told = lines(await made.answer(ME, [b"4"]))
    assert told == [{"number": 5, "plugin": "ear", "event": msgspec.json.decode(EVENT)}]
    assert await numbers(made, 5) == []
    assert lines(await made.answer(ME, [])) == [{"number": 5}]


async def test_a_user_is_told_of_that_user_alone() -> None:
    made = RecentEvents(first=1)
    await made.answer(ME, [])
    await made.answer(OTHER, [])
    made.add("ear", 2, EVENT)
    assert await numbers(made, 0) == []
    assert await numbers(made, 0, OTHER) == [1]


@pytest.mark.parametrize("identity", [
    Identity(1, 1, (), label="agent/coder"),
    Identity(1, 1, (), script=()),
    Identity(1, 1, (), view=()),
    Identity(1, 1, (), namespaces=(7,)),
    Identity(1, 1, (), root=(3, 4)),
])  # fmt: skip
async def test_only_a_persons_own_processes_are_told(identity: Identity) -> None:
    with pytest.raises(Fault, match="a person's own processes") as fault:
        await RecentEvents().answer(identity, [])
    assert fault.value.code == "EPERM"


@pytest.mark.parametrize("words", [[b""], [b"-1"], [b"x"], [b"1", b"2"], [b"1" * 21]])
async def test_anything_but_a_number_is_refused(words: list[bytes]) -> None:
    with pytest.raises(Fault, match="expected the number") as fault:
        await RecentEvents().answer(ME, words)
    assert fault.value.code == "EINVAL"


async def test_the_oldest_make_room() -> None:
    made = RecentEvents(first=1)
    await made.answer(ME, [])
    for _ in range(recent.MAX_EVENTS + 1):
        made.add("ear", 1, EVENT)
    assert await numbers(made, 0) == [*range(2, recent.MAX_EVENTS + 2)]
    large = b'"%b"' % (b"x" * (recent.MAX_BYTES // 2))
    made.add("ear", 1, large)
    made.add("ear", 1, large)
    assert await numbers(made, 0) == [recent.MAX_EVENTS + 3]


async def test_a_user_who_does_not_read_is_forgotten() -> None:
    clock = Clock()
    made = RecentEvents(clock, first=1)
    await made.answer(ME, [])
    clock.now = recent.KEEP_SECONDS
    made.add("ear", 1, EVENT)
    assert await numbers(made, 0) == [1]
    clock.now += recent.KEEP_SECONDS + 1
    made.add("ear", 1, EVENT)
    assert await numbers(made, 0) == []


async def test_so_many_users_read_at_most() -> None:
    clock = Clock()
    made = RecentEvents(clock)
    for uid in range(recent.MAX_READERS):
        await made.answer(Identity(uid, 1, ()), [])
    with pytest.raises(Fault, match="users read events already") as fault:
        await made.answer(Identity(recent.MAX_READERS, 1, ()), [])
    assert fault.value.code == "EAGAIN"
    await made.answer(Identity(0, 1, ()), [])
    clock.now = recent.KEEP_SECONDS + 1
    await made.answer(Identity(recent.MAX_READERS, 1, ()), [])
