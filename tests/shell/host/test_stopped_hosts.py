"""A tool that stops the process it runs in: calls in that process must not wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from cortexfs.core import frames, hostcalls
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.registry import Object
from cortexfs.plugins.catalog import BUILTIN
from cortexfs.pool.tool_call import ToolCalls
from tests.shell.calling import World, serving

IDENTITY = hostcalls.Identity(os.getuid(), os.getgid(), ())
SHELL = Object(class_="tool", name="shell.exec", description="", plugin=BUILTIN)
# The command stays, as its end could be reported before all threads of the host have stopped.
STOP = b'{"cmd":"kill -STOP $PPID; sleep 99"}'
WAIT = b'{"cmd":"echo begun; sleep 99"}'
MOMENT = 0.3  # the time in seconds for a tool that stops its host and never ends by itself


async def call(
    world: World, input_: bytes, begun: trio.Event | None = None, seconds: float = 30
) -> CallOutcome:
    async def say(*_said: frames.Frame) -> None:
        if begun:
            begun.set()

    invocation = hostcalls.Invocation("shell.exec", None, str(os.getuid()), "agent")
    environment = {b"PATH": os.environb[b"PATH"]}
    asked = hostcalls.CallRequest("r", invocation, None, input_, 0o022, environment, directory="/")
    return await ToolCalls(world.pool, seconds).call(SHELL, IDENTITY, asked, say)


async def test_a_host_that_a_tool_has_stopped_ends_with_the_call_that_did_not_let_go(tmp_path: Path) -> None:
    # pool.py: "A stuck host is killed, and a stopped one is killed at once."
    outcomes: dict[str, CallOutcome] = {}

    async def neighbour(world: World) -> None:
        outcomes["neighbour"] = await call(world, WAIT)

    async with serving(tmp_path) as world:
        await call(world, b'{"cmd":"true"}')
        (host,) = world.pool.by_pid.values()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour, world)
            while host.calls < 1:  # noqa: ASYNC110  # it has no event for us
                await trio.sleep(0.001)
            outcomes["stops"] = await call(world, STOP, seconds=MOMENT)
        await host.exited.wait()
        after = await call(world, b'{"cmd":"echo on"}')
    faults = {name: one.fault.code if one.fault else "" for name, one in outcomes.items()}
    assert faults == {"stops": "ETIMEDOUT", "neighbour": "EPROTO"}
    assert after.output == "on\n"


async def test_a_stopped_host_is_no_reason_to_wait_longer_than_a_cancel_takes(tmp_path: Path) -> None:
    # abi.md 5.26
    async with serving(tmp_path) as world:
        await call(world, b'{"cmd":"true"}')
        (host,) = world.pool.by_pid.values()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, world, STOP)
            while not host.is_stopped:  # noqa: ASYNC110  # it has no event for us
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        await host.exited.wait()
        assert not host.calls
