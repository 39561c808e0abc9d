"""The warm fork, with real processes: hosts of MCP servers find their SDK imported, other hosts do not. All
of them are like the hosts that the fork server forks itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from cortexfs.core import hostcalls
from cortexfs.core.manifest.mcp_server import KIND
from cortexfs.host import warm
from tests.shell.forks import AS_NOBODY, NOBODY, PLUGIN, Forks
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts hosts of other users")

USER = hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY))
SERVER = hostcalls.Plugin("mcp:s", "1", KIND, "")
IS_WARM = f"import sys; answer = {warm.MODULE!r} in sys.modules"


@pytest.fixture(params=["root", "user"])
def forks(request: pytest.FixtureRequest) -> Iterator[Forks]:
    with Forks(*(AS_NOBODY if request.param == "user" else ())) as forks:
        forks.plugin = SERVER
        yield forks


def children(pid: int) -> set[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return set(map(int, file.read().split()))


def test_it_is_a_host_of_the_fork_server(forks: Forks) -> None:
    host = forks.spawn(USER)
    assert host.ask(IS_WARM) is True
    assert host.ask("answer = [os.getpid(), os.getppid(), os.getuid(), plugin.kind]") == [
        host.pid,
        forks.process.pid,
        NOBODY,
        KIND,
    ]
    number = host.ask("answer = control.fileno()")
    found = host.ask("answer = [n for n in range(99) if os.path.exists(f'/proc/self/fd/{n}')]")
    assert found == [0, 1, 2, number]
    forks.kill(host)
    assert forks.exit_of(host) == -signal.SIGKILL


def test_a_plugin_of_another_kind_finds_nothing_imported(forks: Forks) -> None:
    forks.spawn(USER)
    forks.plugin = PLUGIN
    assert forks.spawn(USER).ask(f"{IS_WARM} or 'pydantic' in sys.modules") is False


def test_hosts_go_on_without_it(forks: Forks) -> None:
    kept = forks.spawn(USER)
    others = children(forks.process.pid) - forks.by_pid.keys()  # the warm process, and perhaps a spare
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    until(lambda: children(forks.process.pid), others.isdisjoint)
    assert forks.spawn(USER).ask(IS_WARM) is False
    assert kept.ask(IS_WARM) is True


def test_what_a_warm_host_leaves_ends_with_it_and_the_others_stay(forks: Forks) -> None:
    host, other = forks.spawn(USER), forks.spawn(USER)
    left = host.ask("answer = os.spawnlp(os.P_NOWAIT, 'setsid', 'setsid', 'sleep', '600')")
    forks.kill(host)
    assert forks.exit_of(host) == -signal.SIGKILL
    until(lambda: os.path.exists(f"/proc/{left}"), lambda there: not there)
    assert other.ask("answer = 1") == 1
    assert forks.spawn(USER).ask("answer = 1") == 1


def test_it_ends_with_the_fork_server(forks: Forks) -> None:
    host = forks.spawn(USER)
    below = children(forks.process.pid)
    assert host.pid in below
    forks.process.kill()
    until(lambda: [pid for pid in below if os.path.exists(f"/proc/{pid}")], lambda left: not left)
