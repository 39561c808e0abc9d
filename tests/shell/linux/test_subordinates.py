"""No user has the shares of many by subordinate uids, each of which he can be in a user namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.linux import subordinates
from cortexfs.peers.guests import MAX_HELD, Guests
from cortexfs.pool import pool
from cortexfs.pool.run_table import Runs
from cortexfs.sessions.layout import Space
from cortexfs.sessions.log import Most
from cortexfs.sessions.memory_log import SHARE, MemoryBudget, MemoryLog
from cortexfs.sessions.quota import Shares
from cortexfs.state.run_logs import Logs
from cortexfs.tree import open_files
from cortexfs.tree.open_files import Handles, Snapshot

ONE, SAME, OTHER = 200_005, 200_006, 1001


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # abi.md 1.28
    path = tmp_path / "subuid"
    path.write_text("wrong\nroot:1000:1000000000\n0:1000:1000000000\nbob:200000:65536\n1002:300000:9\n")
    monkeypatch.setattr(subordinates, "TABLE", str(path))
    subordinates.person_of.cache_clear()
    yield
    subordinates.person_of.cache_clear()


def test_a_range_counts_as_one_user_and_roots_does_not() -> None:
    of = {199_999: 199_999, 200_000: 200_000, 265_535: 200_000, 265_536: 265_536, 300_008: 300_000, 0: 0}
    assert {uid: subordinates.person_of(uid) for uid in of} == of


def refused(take: Callable[[int], object]) -> bool:
    """Returns True if only ONE and OTHER get what each user may have once, and SAME is refused."""
    take(ONE)
    with pytest.raises(Fault):
        take(SAME)
    take(OTHER)
    return True


def test_such_users_have_one_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "MAX_OF_HOME", 1)
    monkeypatch.setattr(open_files, "MAX_ENTRIES", 1)
    guests, handles, runs = Guests(SHARE * 1), Handles(), Runs(Logs(tmp_path, 1 << 20), 1)
    budget = MemoryBudget(MemoryLog.COST, SHARE * MemoryLog.COST)
    assert [bool(guests.enter(uid)) for uid in (ONE, SAME, OTHER)] == [True, False, True]
    assert guests.turn(ONE) is guests.turn(SAME)
    assert refused(lambda uid: guests.hold(uid, MAX_HELD))
    assert refused(lambda uid: handles.add(Snapshot(b""), uid))
    assert refused(lambda uid: handles.add_listing([("a", 1)], uid))
    assert refused(lambda uid: runs.open("tool", "a", uid, "exec"))
    assert refused(lambda uid: MemoryLog(budget, uid))
    one, same, other = (pool._share(Identity(uid, uid, ())) for uid in (ONE, SAME, OTHER))
    assert (one == same, one == other) == (True, False)


async def test_their_sessions_have_one_share(tmp_path: Path) -> None:
    shares = Shares(tmp_path, Most())
    one, same, other, shared = [
        await shares.of(space) for space in (*map(Space.private, (ONE, SAME, 0)), Space.shared())
    ]
    assert (one is same, one is other, other is shared) == (True, False, False)
