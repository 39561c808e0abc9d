"""host/serve.py and host/call/runtime.py: the effects of a call on its host must not reach the next call."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.peers.streams import receive, send
from cortexfs.plugins.catalog import Catalog, describer
from cortexfs.pool.host import Host, announce
from cortexfs.pool.pool import Pool
from tests.shell.calling import SERVE, SITE, World, serving
from tests.waiting import awaited


@pytest.mark.parametrize("tool", ["close.all", "close.and.open"])
async def test_a_tool_that_closes_what_is_not_its_own(tool: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        before = await world.pid()
        answer = await world.call(world.inode(tool), "{}")
        # abi.md 4.25
        assert (answer.code, answer.status) == ("EPROTO", 70)
        assert await world.pid() != before


async def test_callers_who_leave_at_any_moment_cancel_nobody_else(tmp_path: Path) -> None:
    # serve.py: "a cancellation hits its own call or none"
    async with serving(tmp_path) as world:
        drip, echo = world.inode("drip"), world.inode("echo")
        pid = await world.pid()

        async def leave(after: int) -> None:
            async with world.begun(drip, "{}") as runner:
                while len(runner.out) < after and await runner.hear():
                    pass

        for number in range(100):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave, number * 100)
                for _ in range(3):
                    nursery.start_soon(_echoes, world, echo)
        assert await world.pid() == pid


async def _echoes(world: World, inode: int) -> None:
    answer = await world.call(inode, "hello")
    assert (answer.output, answer.status) == ("hello", 0), answer


async def test_a_child_that_holds_a_call_open_cancels_no_other(tmp_path: Path) -> None:
    # epoll(7): a closed descriptor stays registered while another one refers to its file
    async with serving(tmp_path) as world:
        assert (await world.call(world.inode("fork.child"), "{}")).output == "forked"
        echo = world.inode("echo")
        for _ in range(50):
            await _echoes(world, echo)


async def test_a_callback_that_blocks_keeps_nobody_from_leaving(tmp_path: Path) -> None:
    # abi.md 5.26
    async with serving(tmp_path) as world:
        pid = await world.pid()
        host = world.pool.by_pid[pid]
        async with (
            world.begun(world.inode("wait.in.callback"), "{}") as blocking,
            world.begun(world.inode("wait"), "{}") as waiting,
        ):
            await blocking.until(b"begun")
            await waiting.until(b"begun")
            blocking.stream.shutdown(socket.SHUT_WR)
            waiting.stream.shutdown(socket.SHUT_WR)
            answer = await waiting.answer()
            assert (answer.code, answer.status) == ("ECANCELED", 130)
            assert not host.retired  # the host has let go of that call
            assert (await blocking.answer()).status == 130
        await host.exited.wait()


async def test_a_tool_that_swallows_its_cancellation_is_ended_with_its_host(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        host = world.pool.by_pid[await world.pid()]
        async with world.begun(world.inode("swallow"), "{}") as runner:
            await runner.until(b"begun")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).status == 130
        await host.exited.wait()
        await _echoes(world, world.inode("echo"))


async def test_a_cancellation_that_strikes_a_destructor_is_raised_behind_it(tmp_path: Path) -> None:
    # abi.md 5.26
    async with serving(tmp_path) as world:
        host = world.pool.by_pid[await world.pid()]
        async with world.begun(world.inode("destructor"), "{}") as runner:
            await runner.until(b"begun")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).status == 130
        assert not host.retired  # the host has let go of that call


async def test_no_directory_of_a_caller_stays_in_use(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        pid = await world.pid()
        await _echoes(world, world.inode("echo"))
        await awaited(lambda: _directories(pid) == {"/"})


def _directories(pid: int) -> set[str]:
    found = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread may have just ended
            found.add(os.readlink(f"/proc/{pid}/task/{task}/cwd"))
    return found


async def test_a_thread_that_is_left_behind_speaks_and_moves_for_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        assert (await world.call(world.inode("leave.thread"), "{}")).output == "left"
        answer = await world.call(world.inode("left"), "{}", umask=0o27)
        found = msgspec.json.decode(answer.output)
        assert "this call has ended" in found["thread"][0]
        assert (found["cwd"], found["umask"]) == (os.getcwd(), 0o27)
        assert len(answer.frames) == 3  # "too late" is in no call's output


async def test_words_of_any_length_fit_frames(tmp_path: Path) -> None:
    # abi.md 5.4
    async with serving(tmp_path) as world:
        async with world.begun(world.inode("long.words"), "{}") as runner:
            while await runner.hear():
                pass
        assert max(map(len, runner.out.splitlines(keepends=True))) <= frames.MAX_LINE
        said = [frames.decode(line) for line in runner.out.splitlines()]
        assert runner.status == 0
        assert "".join(frame.text for frame in said if isinstance(frame, frames.Delta)) == "\1" * 300_000
        noted = [frame for frame in said if isinstance(frame, frames.Observer)]
        assert "".join(frame.content for frame in noted) == "\1" * 300_000
        assert {frame.source for frame in noted} == {"€" * 341}
        (progress,) = [frame for frame in said if isinstance(frame, frames.Progress)]
        assert set(progress.message) == {"€"}


async def test_an_attachment_names_a_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(world.inode("long.media"), "{}")
        assert (answer.code, answer.status) == ("EPROTO", 70)
        assert "an attachment names a file or a URL" in answer.message


async def test_an_exception_without_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(world.inode("mute"), "{}")
        assert answer.code == "EPROTO"
        assert answer.message.startswith("the tool failed: _Mute (ctx_serve_plugin.py, line ")
        assert answer.status == 70


async def test_what_is_printed_is_in_the_log(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as world:
        assert (await world.call(world.inode("print"), "{}")).output == "printed"
        await awaited(lambda: "host output: a print\\x1b[2J" in logged.text)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "cortexfs"):
        yield caplog


async def test_more_calls_than_threads(tmp_path: Path) -> None:
    # A host at its limit of threads answers a call once a thread is free.
    async with serving(tmp_path) as world:
        world.pool._limits = hostcalls.HostLimits(1 << 30, 6, 256)
        nap = world.inode("nap")
        pids = []

        async def sleep() -> None:
            pids.append((await world.call(nap, "{}")).output)

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(sleep)
        assert pids == [str(await world.pid())] * 16


# -- describing


async def test_a_schema_that_is_no_json_breaks_its_plugin_with_a_sentence(tmp_path: Path) -> None:
    plugins = [
        hostcalls.Plugin("unspeakable", "1", "python", "ctx_serve_plugin:unspeakable", SITE),
        hostcalls.Plugin("missing", "1", "python", "no_such_module", SITE),
        SERVE,
    ]
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry(plugins)
        assert registry.get("tool", "close.and.open") is not None
        assert set(catalog.broken) == {"unspeakable", "missing"}
        assert "the tool's schema is not JSON: " in catalog.broken["unspeakable"]
        assert "ModuleNotFoundError" in catalog.broken["missing"]
        # Broken plugins are asked anew each time, by processes that do not remember the fault.
        assert [host.plugin.name for host in world.pool.by_pid.values() if not host.retired] in (
            [],
            ["builtin", "serve"],
            ["serve", "builtin"],
        )


async def test_the_built_in_tools_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mount without them would be useless, and only an overloaded machine makes them fail.
    acquired: list[str] = []

    async def acquire(pool: Pool, plugin: hostcalls.Plugin, identity: hostcalls.Identity) -> Host:
        host = await original(pool, plugin, identity)
        acquired.append(plugin.name)
        if len(acquired) <= deaths:
            host.kill()
            await host.exited.wait()
        return host

    original = Pool.acquire
    monkeypatch.setattr(Pool, "acquire", acquire)
    async with serving(tmp_path) as world:
        deaths = 2
        catalog = Catalog(world.pool)
        assert (await catalog.registry([])).get("tool", "fs.read") is not None
        assert (acquired, catalog.broken) == (["builtin"] * 3, {})
        deaths = 9
        acquired.clear()
        catalog = Catalog(world.pool)
        await catalog.registry([])
        assert set(catalog.broken) == {"builtin"}


async def test_a_daemon_that_does_not_keep_to_the_protocol(tmp_path: Path) -> None:
    # A host that receives a wrong message reports it and lives.
    async with serving(tmp_path) as world:
        pid = await world.pid()
        host = await world.pool.acquire(SERVE, world.pool.by_pid[pid].identity)
        for said in (
            wire.message(wire.STDIN, b"x"),
            wire.message(wire.REQUEST, b"\xc1"),
            wire.message(wire.REQUEST),
            wire.HEADER.pack(wire.REQUEST, 1 << 31),
        ):
            with host.call(None) as call:
                await send(call, said)
                assert await _fault(call) == "EPROTO"
        with host.call(None) as call:
            await send(
                call, announce(hostcalls.CallRequest("r", hostcalls.Invocation("echo"), [b"x"], None, 0, {}))
            )
            assert await _fault(call) == "EACCES"  # no working directory came with the request
        world.pool.release(host)
        assert await world.pid() == pid


async def _fault(call: socket.socket) -> str:
    splitter = wire.Splitter()
    said: list[tuple[int, bytes]] = []
    while data := await receive(call):
        said += splitter.feed(data)
    assert [kind for kind, _ in said] == [wire.FAULT, wire.DONE]
    code: str = msgspec.msgpack.decode(said[0][1])[0]
    return code


def test_who_describes() -> None:
    # abi.md 4.39
    assert describer().uid == (65534 if os.geteuid() == 0 else os.geteuid())
