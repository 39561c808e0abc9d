"""pool.py: calls that wait for a host while all hosts of their user are at work."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.pool import pool as hosts
from cortexfs.pool.host import Host
from tests.shell.pool.test_hosts import WHO, Stage, plugin

OF_AN_AGENT = msgspec.structs.replace(WHO, label="agent/a", view=(("/srv", "rwx"),))


async def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the ends of calls for two other plugins, whose only host comes free once."""
    stage, found = Stage(monkeypatch), list[str]()

    async def one(name: str) -> None:
        try:
            await stage.pool.acquire_for(plugin(name), OF_AN_AGENT)
            found.append("ok")
        except Fault as fault:
            found.append(fault.code)

    async def first() -> None:
        held.append(await stage.pool.acquire_for(plugin("held"), OF_AN_AGENT))

    held: list[Host] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            stage.forks.start(1)
            await trio.testing.wait_all_tasks_blocked()
            for name in ("b", "c"):
                nursery.start_soon(one, name)
                await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            stage.pool.release(held[0])
            await trio.testing.wait_all_tasks_blocked()
            stage.forks.start(2)
            await trio.testing.wait_all_tasks_blocked()
            assert (found, trio.current_time()) == (["ok"], began)  # it was woken
            await trio.sleep(hosts.PATIENCE + 1)
        assert not stage.pool._waiting
    finally:
        stage.pool.stop()
    return found


def test_a_call_waits_for_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/agents.md: "a call waits for one, up to 30 s"
    monkeypatch.setattr(hosts, "HOSTS_PER_USER", 1)
    clock = trio.testing.MockClock(autojump_threshold=0.01)
    assert trio.run(ended, monkeypatch, clock=clock) == ["ok", "EAGAIN"]


async def test_a_person_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "HOSTS_PER_USER", 1)
    stage = Stage(monkeypatch)
    await stage.host(plugin("held"))
    with pytest.raises(Fault, match="which is the limit") as caught:
        await stage.pool.acquire_for(plugin("a"), WHO)
    assert caught.value.code == "EAGAIN"
    stage.pool.stop()
