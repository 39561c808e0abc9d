"""Active runs and finished runs: abi.md 3.18, 5.20."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.pool.run_table import SOCKET, RunLogLine, Runs
from cortexfs.state.run_logs import Logs


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path, 1 << 20)


def test_a_line_for_each_run_that_ended(logs: Logs) -> None:
    # "ts, run, caller uid, source, status, code, ms, bytes in/out"
    runs = Runs(logs, 10)
    first, second = runs.open("tool", "t", 1000, "exec"), runs.open("tool", "t", 0, "socket")
    assert first.id != second.id
    assert set(runs.active) == {first.id, second.id}
    first.bytes_out = 7
    runs.close(first)
    runs.close(second, Fault("EPROTO", "died"))
    lines = [
        msgspec.json.decode(line, type=RunLogLine) for line in logs.read("tool", "t", 0, 10_000).splitlines()
    ]
    assert [(line.run, line.uid, line.source, line.status, line.code) for line in lines] == [
        (first.id, 1000, "exec", "ok", None),
        (second.id, 0, "socket", "error", "EPROTO"),
    ]
    assert lines[0].bytes_out == 7
    assert lines[0].ts.endswith("Z")
    assert not runs.active
    assert runs.total == 2
    # abi.md 3.19; everybody may read status, so it names no object, run or moment
    assert runs.last_error == "a run ended with EPROTO; the log of its object says which"


def test_each_users_lines_are_in_a_log_of_his_own_too(logs: Logs) -> None:
    # abi.md 3.19
    runs = Runs(logs, 10)
    ids = {}
    for uid in (1000, 0):
        run = runs.open("model", "p/m", uid, "exec")
        ids[uid] = run.id
        runs.close(run)
    own = runs.open("agent", "home/1000/mine", 1000, "exec")
    runs.close(own)
    logs.flush()
    for uid, id_ in ids.items():
        lines = (logs.root / f"home/{uid}/model/p/m.d/log").read_bytes().splitlines()
        assert [msgspec.json.decode(line, type=RunLogLine).run for line in lines] == [id_]
    assert b"home/1000" not in logs.read("model", "p/m", 0, 10_000)
    # An agent that belongs to the user has one log, which is the user's already.
    assert own.id.encode() in logs.read("agent", "home/1000/mine", 0, 10_000)
    assert not (logs.root / "home/1000/agent").exists()


async def test_whether_a_run_has_ended_is_told_to_its_user(logs: Logs) -> None:
    runs = Runs(logs, 10)
    run = runs.open("tool", "t", 1000, "exec")
    assert not await runs.has_ended("tool", "t", 1000, run.id)
    runs.close(run)
    assert await runs.has_ended("tool", "t", 1000, run.id)
    assert not await runs.has_ended("tool", "t", 1001, run.id)


def test_one_user_has_so_many_runs_at_once(logs: Logs) -> None:
    runs = Runs(logs, 2)
    first = runs.open("tool", "t", 1000, "exec")
    runs.open("tool", "t", 1000, "exec")
    with pytest.raises(Fault, match="try again") as caught:
        runs.open("tool", "t", 1000, "exec")
    assert caught.value.code == "EAGAIN"
    runs.open("tool", "t", 1001, "exec")  # another user is not affected
    runs.close(first)
    runs.open("tool", "t", 1000, "exec")


async def test_stopping_takes_no_more_and_waits_for_the_rest(logs: Logs) -> None:
    import trio

    runs = Runs(logs, 2)
    run = runs.open("tool", "t", 0, "exec")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runs.drained)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Fault, match="shutting down"):
            runs.open("tool", "t", 0, "exec")
        runs.close(runs.open("model", "m", 0, SOCKET))  # a run whose message has begun may still start
        runs.close(run)
    await runs.drained()
