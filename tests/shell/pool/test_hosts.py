"""hosts.py: hosts are found, started, replaced and ended; the fork server may die."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.pool import pool as hosts
from cortexfs.pool.host import Host
from cortexfs.pool.pool import Pool
from tests.shell.calling import LIMITS, files_closed, open_files, serving
from tests.waiting import awaited

WHO = hostcalls.Identity(os.geteuid(), os.getegid(), ())
BUILTIN = hostcalls.Plugin("builtin", "1", "python", "m:a")


def plugin(name: str) -> hostcalls.Plugin:
    return hostcalls.Plugin(name, "1", "python", "m:a")


class FakeForks:
    """A fork server that creates no processes; its hosts are their control sockets."""

    def __init__(self) -> None:
        self.hosts: dict[int, socket.socket] = {}
        self.pool: Pool | None = None
        self.fault: Fault | None = None

    def send(self, message: hostcalls.ToForkServer, rights: Sequence[int] = ()) -> None:
        if self.fault:
            raise self.fault
        if isinstance(message, hostcalls.Spawn):
            self.hosts[message.host] = socket.socket(fileno=os.dup(rights[0]))

    def start(self, number: int) -> None:
        """Report that the host runs."""
        assert self.pool is not None
        self.pool._handle(hostcalls.HostStart(number, 1_000_000 + number))

    def hear_until(self, *_: object) -> None:
        """Nothing comes."""

    def close(self) -> None:
        for control in self.hosts.values():
            control.close()

    def asked_to_leave(self, number: int) -> bool:
        self.hosts[number].setblocking(False)
        try:
            return self.hosts[number].recv(1) == b""
        except BlockingIOError:
            return False


class FakeStarter:
    def __init__(self) -> None:
        self.looks = socket.socket()

    def first(self) -> tuple[None, list[int]]:
        return self.start_now("")

    def start_now(self, what: str) -> tuple[None, list[int]]:
        ours, theirs = socket.socketpair()
        theirs.close()
        output, printed = os.pipe()
        os.close(printed)
        return None, [ours.detach(), output]

    def stop(self) -> None:
        self.looks.close()


class Stage:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forks = FakeForks()
        self.pool = self.forks.pool = Pool(LIMITS, cast(Any, FakeStarter()))
        self.pool._forks.close()
        self.pool._forks = cast(Any, self.forks)
        self.pool.people._send = self.forks.send
        self.killed: list[int] = []
        monkeypatch.setattr(Host, "kill", lambda host: self._kill(host))

    def _kill(self, host: Host) -> None:
        self.killed.append(host.number)
        host.end()

    async def host(self, of: hostcalls.Plugin, who: hostcalls.Identity = WHO) -> Host:
        """Acquire a host, and report the start of each host that this starts."""
        got: list[Host] = []

        async def acquire() -> None:
            got.append(await self.pool.acquire(of, who))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acquire)
            await trio.testing.wait_all_tasks_blocked()
            for number in self.forks.hosts:
                host = self.pool._all.get(number)
                if host is not None and not host.ready.is_set():
                    self.forks.start(number)
        return got[0]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Stage(monkeypatch)
    yield made
    made.pool.stop()


async def test_one_host_for_each_plugin_and_identity(stage: Stage) -> None:
    first = await stage.host(plugin("a"))
    assert await stage.host(plugin("a")) is first
    assert first.calls == 2
    assert await stage.host(plugin("b")) is not first
    assert await stage.host(plugin("a"), msgspec.structs.replace(WHO, label="coder")) is not first
    assert stage.pool.is_warm(plugin("a"), WHO)
    assert not stage.pool.is_warm(plugin("c"), WHO)
    remote = msgspec.structs.replace(plugin("c"), kind=hostcalls.TEAM)
    assert stage.pool.is_warm(remote, WHO), "a call of another machine waits for no host"


async def test_a_host_that_is_waited_for_is_not_dismissed(stage: Stage) -> None:
    # "A caller is counted before it waits, so a host in use is never dismissed."
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.pool.acquire, BUILTIN, WHO)
        await trio.testing.wait_all_tasks_blocked()
        stage.forks.start(1)
        stage.pool.replace(lambda _: False)
        stage.pool.sweep(-1)
    assert not stage.forks.asked_to_leave(1)
    host = stage.pool._all[1]
    assert (host.calls, host.retired) == (1, True)
    stage.pool.release(host)
    assert stage.forks.asked_to_leave(1)
    assert stage.killed == []


async def test_a_host_that_has_died_is_not_given_out(stage: Stage) -> None:
    # The end of its socket shows that it has ended, before the fork server reports it.
    first = await stage.host(plugin("a"))
    stage.pool.release(first)
    stage.forks.hosts[1].close()
    second = await stage.host(plugin("a"))
    assert second.number == 2
    stage.pool._handle(hostcalls.HostExit(1, -9))
    assert (first.describe_end(), len(stage.pool)) == ("was killed by SIGKILL", 1)


@pytest.mark.parametrize(
    ("status", "said"),
    [(None, "broke off"), (3, "exited with status 3"), (-11, "was killed by SIGSEGV"), (-99, "a signal")],
)
async def test_the_end_of_a_host_is_named(status: int | None, said: str, stage: Stage) -> None:
    host = await stage.host(plugin("a"))
    host.status = status
    assert said in host.describe_end()


async def test_a_stuck_host_ends_when_its_other_calls_have(stage: Stage) -> None:
    host = await stage.host(plugin("a"))
    assert await stage.host(plugin("a")) is host
    stage.pool.release(host, stuck=True)
    host.idle_since -= 10 * hosts.RETIRED_SECONDS
    stage.pool.sweep(0)
    assert stage.killed == []
    assert (await stage.host(plugin("a"))).number == 2
    stage.pool.release(host)
    assert stage.killed == [1]


def _probe() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


async def test_a_host_that_is_set_aside_serves_again_when_its_probe_ends(stage: Stage) -> None:
    # abi.md 4.50
    first = await stage.host(plugin("a"))
    (probe, end), (another, anothers_end) = _probe(), _probe()
    stage.pool.set_aside(first, probe)
    stage.pool.set_aside(first, another)  # a second call was taken back from the host
    assert another.fileno() < 0
    anothers_end.close()
    stage.pool.release(first)
    deputy = await stage.host(plugin("a"))
    assert await stage.host(plugin("a")) is deputy
    end.close()
    assert await stage.host(plugin("a")) is first
    assert probe.fileno() < 0
    for _ in range(2):
        assert not stage.forks.asked_to_leave(deputy.number)  # the host still has calls
        stage.pool.release(deputy)
    assert stage.forks.asked_to_leave(deputy.number)
    assert stage.killed == []


@pytest.mark.parametrize("ends", ["dies", "is replaced", "is idle", "has a deputy aside"])
async def test_a_host_that_is_set_aside_and_does_not_come_back(ends: str, stage: Stage) -> None:
    first = await stage.host(BUILTIN)
    probe, end = _probe()
    stage.pool.set_aside(first, probe)
    stage.pool.release(first)
    if ends == "dies":
        stage.forks.hosts[1].close()
    elif ends == "is replaced":
        stage.pool.replace(lambda plugin: False)
    elif ends == "is idle":
        stage.pool.sweep(-1)
    else:
        deputy = await stage.host(BUILTIN)
        deputys_probe, deputys_end = _probe()
        stage.pool.set_aside(deputy, deputys_probe)
        deputys_end.close()
        assert (deputy.retired, first.retired) == (True, False)
        stage.pool.release(deputy)
        assert stage.forks.asked_to_leave(deputy.number)
        end.close()
        assert await stage.host(BUILTIN) is first
        return
    end.close()
    assert (await stage.host(BUILTIN)).number == 2
    assert probe.fileno() < 0


async def test_idle_hosts_of_built_in_tools_are_ended(stage: Stage) -> None:
    builtin, other = await stage.host(BUILTIN), await stage.host(plugin("a"))
    stage.pool.release(other)
    stage.pool.sweep(-1)
    assert not stage.forks.asked_to_leave(1)  # the host is at work
    stage.pool.release(builtin)
    stage.pool.sweep(-1)
    assert stage.forks.asked_to_leave(1)
    assert not stage.forks.asked_to_leave(2)  # the host holds a plugin's state
    assert stage.killed == []
    builtin.idle_since -= 2 * hosts.RETIRED_SECONDS
    stage.pool.sweep(-1)
    assert stage.killed == [1]  # the host did not leave


async def test_idle_hosts_of_javascript_are_ended_unless_they_hear_of_others(stage: Stage) -> None:
    # abi.md 9.49
    esm = msgspec.structs.replace(plugin("a"), kind=hostcalls.ESM)
    module, listener = [await stage.host(one) for one in (esm, msgspec.structs.replace(esm, hooks=("pre",)))]
    for host in (module, listener):
        stage.pool.release(host)
    stage.pool.sweep(-1)
    assert [stage.forks.asked_to_leave(host.number) for host in (module, listener)] == [True, False]


async def test_replaced_plugins_lose_their_hosts(stage: Stage) -> None:
    idle, busy, kept = [await stage.host(plugin(name)) for name in ("idle", "busy", "kept")]
    stage.pool.release(idle)
    stage.pool.replace(lambda one: one.name == "kept")
    assert [host.retired for host in (idle, busy, kept)] == [True, True, False]
    assert [stage.forks.asked_to_leave(host.number) for host in (idle, busy, kept)] == [True, False, False]


async def test_a_user_has_so_many_hosts(stage: Stage) -> None:
    held = [await stage.host(plugin(f"p{number}")) for number in range(hosts.HOSTS_PER_USER)]
    with pytest.raises(Fault, match="which is the limit") as caught:
        await stage.pool.acquire(plugin("more"), WHO)
    assert caught.value.code == "EAGAIN"
    assert (await stage.host(plugin("more"), msgspec.structs.replace(WHO, uid=7))).calls == 1
    stage.pool.release(held[3])
    assert (await stage.host(plugin("more"))).calls == 1  # in place of the idle host
    assert stage.forks.asked_to_leave(held[3].number)


async def test_all_agents_of_a_user_have_so_many_hosts(stage: Stage) -> None:
    # a host for each working directory and each agent, and a user may make any number of these
    def working(number: int) -> hostcalls.Identity:
        view = ((f"/srv/{number}", "rwx"),)
        return msgspec.structs.replace(WHO, label=f"agent/a{number}", view=view)

    most = hosts.HOSTS_PER_USER
    held = [await stage.host(plugin("p"), working(number)) for number in range(most)]
    with pytest.raises(Fault, match="which is the limit"):
        await stage.pool.acquire(plugin("p"), working(most))
    assert (await stage.host(plugin("p"))).calls == 1  # the user's own calls go on
    describer = msgspec.structs.replace(WHO, label=hostcalls.DESCRIBER)
    assert (await stage.host(plugin("p"), describer)).calls == 1
    stage.pool.release(held[0])
    assert (await stage.host(plugin("p"), working(most))).calls == 1


async def test_a_host_that_cannot_start(stage: Stage) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_refused, stage.pool, "EACCES")
        nursery.start_soon(_refused, stage.pool, "EACCES")
        await trio.testing.wait_all_tasks_blocked()
        stage.pool._handle(hostcalls.HostStart(1, 0, ("EACCES", "no")))
    assert len(stage.pool) == 0
    stage.forks.fault = Fault("EHOSTDOWN", "gone")
    await _refused(stage.pool, "EHOSTDOWN")
    assert len(stage.pool) == 0


async def _refused(pool: Pool, code: str) -> None:
    with pytest.raises(Fault) as caught:
        await pool.acquire(plugin("a"), WHO)
    assert caught.value.code == code


async def test_a_host_that_never_says_that_it_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hasty:
        hasty.setattr(hosts, "SPAWN_SECONDS", 0.01)
        await _refused(stage.pool, "EHOSTDOWN")
    assert stage.forks.asked_to_leave(1)
    assert (await stage.host(plugin("a"))).number == 2  # the pool does not wait for the first host again


async def test_more_calls_than_a_host_takes(stage: Stage) -> None:
    host = await stage.host(plugin("a"))
    before = open_files()
    opened = []
    with pytest.raises(Fault) as caught:  # noqa: PT012  # one of them will
        while True:
            opened.append(host.call(None))
    assert caught.value.code == "EAGAIN"
    for stream in opened:
        stream.close()
    stage.pool.pairs.refill()
    assert open_files() == before


async def test_a_fork_server_that_dies_is_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        pid = await world.pid()
        host = world.pool.by_pid[pid]
        before = open_files()
        for _ in range(3):
            forks = world.pool._forks.child
            os.kill(forks.pid, signal.SIGKILL)
            await host.exited.wait()
            await forks.ended.wait()
            await awaited(lambda dead=forks: world.pool._forks.child is not dead)  # type: ignore[misc]
            assert await world.pid() != pid
            pid = await world.pid()
            host = world.pool.by_pid[pid]
            await files_closed(before)
        assert len(world.pool) == 1


async def test_a_run_whose_fork_server_dies_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        async with world.begun(world.inode("wait"), "{}") as runner:
            await runner.until(b"begun")
            os.kill(world.pool._forks.child.pid, signal.SIGKILL)
            answer = await runner.answer()
        assert (answer.code, answer.status) == ("EPROTO", 70)
        assert "SIGKILL" in answer.message


async def test_a_host_that_was_started_for_somebody_who_has_left(stage: Stage) -> None:
    # An event reports a run that has ended, and the user's next call came while the event's host started.
    ours, theirs = socket.socketpair()
    got: list[Host] = []

    async def call() -> None:
        got.append(await stage.pool.acquire(plugin("a"), WHO, ours))

    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, stage.pool, "EACCES")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            stage.pool._handle(hostcalls.HostStart(1, 0, ("EACCES", "it has ended")))
            await trio.testing.wait_all_tasks_blocked()
            stage.forks.start(2)
    assert [host.number for host in got] == [2]
