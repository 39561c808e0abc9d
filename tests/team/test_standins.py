"""A stand-in is asked for several connections at a time, and each call gets its own."""

from __future__ import annotations

import getpass
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.team import standins as standins_module
from cortexfs.team.standins import AT_ONCE, StandIn, StandIns

MANY = 4 * AT_ONCE


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder with the names of a mount that a stand-in needs."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / ".run.sock"))
        listener.listen(MANY + 8)
        (tmp_path / "tool").mkdir()
        for number in range(MANY):
            (tmp_path / "tool" / str(number)).touch()
        yield tmp_path


@pytest.fixture
def standins(root: Path) -> StandIns:
    return StandIns(str(root))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_call_gets_the_inode_of_its_own_object(root: Path, standins: StandIns) -> None:
    async def main() -> dict[int, int]:
        found: dict[int, int] = {}

        async def connect(standin: StandIn, number: int) -> None:
            inode, stream = await standin.connected(wanted[number])
            with stream:
                found[number] = inode

        standin = standins.of(getpass.getuser())
        assert standins.of(getpass.getuser()) is standin
        wanted = [standin.ask(f"tool/{number}") for number in range(MANY)]
        async with trio.open_nursery() as nursery:
            for number in reversed(range(MANY)):
                nursery.start_soon(connect, standin, number)
        standins.end()
        return found

    before = descriptors()
    found = trio.run(main)
    assert found == {number: (root / "tool" / str(number)).stat().st_ino for number in range(MANY)}
    assert descriptors() == before


def test_an_object_that_is_not_there_is_a_fault_of_its_own_call(standins: StandIns) -> None:
    async def main() -> None:
        standin = standins.of(getpass.getuser())
        gone, there = standin.ask("tool/none"), standin.ask("tool/1")
        (await standin.connected(there))[1].close()
        with pytest.raises(Fault, match="tool/none cannot be run here"):
            await standin.connected(gone)
        standins.end()

    trio.run(main)


def test_all_who_wait_for_a_stand_in_that_dies_are_told(standins: StandIns) -> None:
    async def main() -> list[str]:
        told: list[str] = []

        async def connect(number: int) -> None:
            with pytest.raises(Fault) as fault:
                await standin.connected(wanted[number])
            told.append(fault.value.code)

        standin = standins.of(getpass.getuser())
        standin._process.send_signal(signal.SIGSTOP)
        wanted = [standin.ask("tool/1"), standin.ask("tool/2")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, 0)
            nursery.start_soon(connect, 1)
            await trio.testing.wait_all_tasks_blocked()
            standin._process.kill()
        standin._process.wait()
        with pytest.raises(Fault):
            standin.ask("tool/1")
        assert standins.of(getpass.getuser()) is not standin
        standins.end()
        return told

    assert trio.run(main) == ["EHOSTDOWN", "EHOSTDOWN"]


def test_a_stand_in_that_does_not_answer_is_ended_and_another_serves(
    standins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standins_module, "ANSWER_SECONDS", 0.1)

    async def main() -> None:
        silent = standins.of(getpass.getuser())
        silent._process.send_signal(signal.SIGSTOP)
        with pytest.raises(Fault, match="ETIMEDOUT: the mount of that machine does not answer"):
            await silent.connected(silent.ask("tool/1"))
        monkeypatch.undo()
        other = standins.of(getpass.getuser())
        assert other is not silent
        (await other.connected(other.ask("tool/1")))[1].close()
        standins.end()

    trio.run(main)
