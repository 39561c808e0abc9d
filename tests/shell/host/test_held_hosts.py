"""A host that makes no progress, as it is stopped or a tool holds its interpreter lock. Calls it has not
begun move to another host, and each runs once. Later the host serves again with the state that it holds."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from cortexfs.core import frames, hostcalls
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.registry import Object
from cortexfs.plugins.catalog import BUILTIN
from cortexfs.pool import call as calls
from cortexfs.pool.host import Host
from cortexfs.pool.tool_call import ToolCalls
from tests.shell.calling import SERVE, World, serving
from tests.waiting import awaited, until

LARGE = "x" * (1 << 20)  # more than a socket holds


def only_host(world: World) -> Host:
    (host,) = world.pool.by_pid.values()
    return host


@contextlib.asynccontextmanager
async def held(world: World, pipe: Path) -> AsyncIterator[None]:
    """Have a tool hold the lock of the only host until the end of the block, and then check its answer."""
    os.mkfifo(pipe)
    answers = []

    async def hold() -> None:
        answers.append(await world.call(world.inode("hold"), str(pipe)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await awaited(pipe.with_name(f"{pipe.name}.held").exists)
        yield
        await trio.to_thread.run_sync(pipe.write_text, "go\n")
    assert [answer.output for answer in answers] == ["held"]


async def serves_again(world: World, host: Host) -> None:
    """Wait until the host serves again, and its substitutes have ended."""
    while await world.pid() != host.pid:
        pass
    await awaited(lambda: list(world.pool.by_pid), [host.pid].__eq__)


async def test_a_tool_that_keeps_the_interpreter_lock_keeps_no_other_call(tmp_path: Path) -> None:
    # abi.md 4.50
    count, lines, faults = tmp_path / "count", [], []
    async with serving(tmp_path) as world:
        counting = world.inode("count")
        assert (await world.call(counting, str(count))).output == "1"
        host = only_host(world)

        async def callers(*words: str) -> None:
            answer = await world.call(counting, *words)
            faults.append(answer.message)

        async with held(world, tmp_path / "pipe"):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(callers, str(count))
                nursery.start_soon(callers, "--path", str(count), "--text", LARGE)
            assert faults == [""] * 4
            assert await world.pid() != host.pid
            lines = count.read_text().split()
        await serves_again(world, host)
        assert (await world.call(counting, str(count))).output == "2"  # with the state it had
    # Each call has run, and the host that had it first does not run it again.
    assert sorted(lines) == ["0"] * 4 + [str(len(LARGE))]
    assert count.read_text().split() == [*lines, "0"]


async def test_a_tool_that_keeps_the_interpreter_lock_keeps_no_call_of_an_agent(tmp_path: Path) -> None:
    pipe, count = tmp_path / "pipe", tmp_path / "count"
    os.mkfifo(pipe)
    async with serving(tmp_path) as world, trio.open_nursery() as nursery:
        nursery.start_soon(as_agents, world, "hold", f'{{"path":"{pipe}"}}')
        await awaited(pipe.with_name("pipe.held").exists)
        one, two = f'{{"path":"{count}"}}', f'{{"path":"{count}","text":"{LARGE}"}}'
        outcomes = [await as_agents(world, "count", input_) for input_ in (one, two)]
        assert [(outcome.output, outcome.fault) for outcome in outcomes] == [("1", None), ("2", None)]
        await trio.to_thread.run_sync(pipe.write_text, "go\n")
    assert count.read_text().split() == ["0", str(len(LARGE))]


async def as_agents(world: World, name: str, input_: str) -> CallOutcome:
    async def say(*_: frames.Frame) -> None:
        pass

    me = hostcalls.Identity(os.geteuid(), os.getegid(), tuple(os.getgroups()))
    tool = Object(class_="tool", name=name, description="", plugin=SERVE)
    invocation = hostcalls.Invocation(name, None, str(os.getuid()), "agent")
    asked = hostcalls.CallRequest("r", invocation, None, input_.encode(), 0o022, {}, directory="/")
    return await ToolCalls(world.pool, 30).call(tool, me, asked, say)


@pytest.mark.parametrize("words", [(), ("--text", LARGE)], ids=["small", "large"])
async def test_who_leaves_before_his_call_has_begun_takes_no_host_along(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    # abi.md 5.26
    count = tmp_path / "count"
    async with serving(tmp_path) as world:
        await world.pid()
        host = only_host(world)
        async with held(world, tmp_path / "pipe"):
            answer = await world.cancelled(world.inode("count"), "--path", str(count), *words)
            assert answer.status == 130
            assert not host.retired
        await serves_again(world, host)
    assert not count.exists()


async def test_a_host_that_is_replaced_while_it_is_held_leaves_in_good_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        await world.pid()
        host = only_host(world)
        async with held(world, tmp_path / "pipe"):
            assert await world.pid() != host.pid
            world.pool.replace(lambda plugin: False)
        await awaited(lambda: len(world.pool) == 0)
        assert host.status == 0


async def test_a_stopped_host_gets_no_calls_until_it_goes_on(tmp_path: Path) -> None:
    # abi.md 4.50
    pipe, said = tmp_path / "pipe", []
    os.mkfifo(pipe)
    async with serving(tmp_path) as world:
        shell = world.inode("shell.exec", BUILTIN)
        assert (await world.call(shell, "true")).status == 0
        host = only_host(world)

        async def neighbour() -> None:
            said.append((await world.call(shell, f"echo begun; read line < {pipe}; echo $line")).output)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            writer = await trio.to_thread.run_sync(os.open, pipe, os.O_WRONLY)  # the shell reads, so it runs
            os.kill(host.pid, signal.SIGSTOP)
            await awaited(lambda: host.is_stopped)  # before that, the host may begin a call, and keep it
            async with trio.open_nursery() as calls:
                for _ in range(3):
                    calls.start_soon(world.call, shell, "true")
            deputy = int((await world.call(shell, "echo $PPID")).output)
            assert deputy != host.pid
            assert not host.retired
            os.kill(host.pid, signal.SIGCONT)
            os.write(writer, b"on\n")
            os.close(writer)
        assert said == ["begun\non\n"]  # the call that ran in it has lost nothing
        while int((await world.call(shell, "echo $PPID")).output) != host.pid:
            pass
        await awaited(lambda: list(world.pool.by_pid), [host.pid].__eq__)


async def test_a_call_that_waits_in_a_host_that_is_killed_runs_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 4.50
    monkeypatch.setattr(calls, "LOOKS", 1_000_000)  # only the host's end takes the call back
    pipe, count, answers = tmp_path / "pipe", tmp_path / "count", {}
    os.mkfifo(pipe)
    async with serving(tmp_path) as world:
        await world.pid()
        host = only_host(world)

        async def call(name: str, *words: str) -> None:
            answers[name] = await world.call(world.inode(name), *words)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "hold", str(pipe))
            await awaited(pipe.with_name("pipe.held").exists)
            nursery.start_soon(call, "count", str(count))
            await awaited(lambda: host.calls, (2).__eq__)
            os.kill(host.pid, signal.SIGKILL)
    assert "was killed by SIGKILL during the call" in answers["hold"].message
    assert (answers["count"].message, answers["count"].output) == ("", "1")
    assert count.read_text() == "0\n"


@pytest.mark.parametrize("words", [(), ("--text", LARGE)], ids=["small", "large"])
async def test_a_call_whose_host_dies_before_it_is_sent_runs_in_another(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 4.50
    count, opened = tmp_path / "count", Host.open
    async with serving(tmp_path) as world:
        await world.pid()
        host = only_host(world)

        def killed_before(self: Host, cwd: int | None, request: bytes) -> Any:
            if self is host:
                os.kill(host.pid, signal.SIGKILL)
                until(lambda: not host.is_alive)
            return opened(self, cwd, request)

        monkeypatch.setattr(Host, "open", killed_before)
        answer = await world.call(world.inode("count"), "--path", str(count), *words)
        assert (answer.message, answer.output) == ("", "1")
        assert only_host(world).pid != host.pid


async def test_a_call_that_waits_in_a_host_that_is_ended_runs_in_another(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        await world.pid()
        host = only_host(world)
        os.kill(host.pid, signal.SIGSTOP)
        await awaited(lambda: host.is_stopped)
        answers = []

        async def call() -> None:
            answers.append(await world.pid())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call)
            await awaited(lambda: host.calls == 5)
            world.pool.release(host, stuck=True)  # the call whose tool stopped the host
            host.calls += 1
        assert len(set(answers)) == 1
        assert host.pid not in answers
