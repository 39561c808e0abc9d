"""The spare host, with real processes: the next host waits in its cgroup before it is needed. In use it is
like any other host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from cortexfs.core import hostcalls
from cortexfs.host.confine.limits import PREFIX, hierarchies
from tests.shell.forks import LIMITS, NOBODY, Forks
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are root's")

USER = hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY))


@pytest.fixture
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        forks.spawn(USER)
        if not groups(forks):
            pytest.skip("there are no cgroups to be had")
        yield forks


def groups(forks: Forks) -> dict[int, list[int]]:
    """Returns the processes in each cgroup of the fork server, by the cgroup's number."""
    name = f"{PREFIX}{os.getpid()}.{forks.process.pid}"
    for _, top in hierarchies():
        for place in top.rglob(name):
            return {int(one.name): in_it(one) for one in place.iterdir() if one.is_dir()}
    return {}


def in_it(group: Path) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):  # its host has just ended
        return [*map(int, (group / "cgroup.procs").read_text().split())]
    return []


def spare(forks: Forks, number: int) -> int:
    """Returns the pid of the spare for this host, once it waits in its cgroup."""
    [pid] = until(lambda: groups(forks).get(number, []))
    return pid


def test_the_next_host_is_the_process_that_waits(forks: Forks) -> None:
    for number in (2, 3):
        pid = spare(forks, number)
        host = forks.spawn(USER)
        assert (host.number, host.pid) == (number, pid)
        assert host.ask("answer = [os.getpid(), os.getppid(), os.getuid()]") == [
            pid,
            forks.process.pid,
            NOBODY,
        ]
        control = host.ask("answer = control.fileno()")
        found = host.ask("answer = [n for n in range(99) if os.path.exists(f'/proc/self/fd/{n}')]")
        assert found == [0, 1, 2, control]
        forks.kill(host)
        assert forks.exit_of(host) == -signal.SIGKILL


def test_it_holds_nothing_of_the_fork_server(forks: Forks) -> None:
    pid = spare(forks, 2)
    # the fourth is its channel; the file by which it enters its cgroup is closed after that
    held = until(lambda: os.listdir(f"/proc/{pid}/fd"), lambda found: len(found) == 4)
    assert sorted(map(int, held))[:3] == [0, 1, 2]


def test_it_is_limited_as_its_host_is(forks: Forks) -> None:
    spare(forks, 2)
    host = forks.spawn(USER, limits=msgspec.structs.replace(LIMITS, processes=5))
    started = """
answer = 0
try:
    for _ in range(9):
        os.posix_spawn('/bin/sleep', ['sleep', '600'], os.environ)
        answer += 1
except BlockingIOError:
    pass
"""
    assert host.ask(started) == 4


def test_another_number_and_a_dead_spare_hold_nothing_up(forks: Forks) -> None:
    unused = spare(forks, 2)
    forks._number += 1
    host = forks.spawn(USER)
    assert host.number == 3
    assert host.pid != unused
    os.kill(dead := spare(forks, 4), signal.SIGKILL)
    host = forks.spawn(USER)
    assert host.pid != dead
    assert host.ask("answer = 1") == 1
    assert unused not in [pid for pids in groups(forks).values() for pid in pids]


def test_it_ends_with_the_fork_server(forks: Forks) -> None:
    pid = spare(forks, 2)
    forks.process.kill()
    forks.process.wait()
    until(lambda: os.path.exists(f"/proc/{pid}"), lambda there: not there)
