"""The exec service as a runner sees it, with real hosts: abi.md 4, and the ways in which runs end."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.peers.streams import send
from tests.shell.calling import FAULTY, Runner, World, hello, serving
from tests.waiting import PATIENCE, awaited


@pytest.mark.parametrize(
    ("tool", "words", "code", "status", "said"),
    [
        # abi.md 4.29, and the table of exit statuses
        ("bad.soft", (), "EIO", 1, "not today"),
        ("bad.invalid", (), "EINVAL", 2, "no such colour"),
        ("bad.failed", (), "EIO", 1, "the far end said no"),
        ("bad.failed", ("code=ENOSPC",), "ENOSPC", 1, ""),
        ("bad.failed", ("code=EACCES",), "EACCES", 13, ""),
        ("bad.failed", ("code=EPERM",), "EPERM", 13, ""),
        ("bad.failed", ("code=EHOSTDOWN",), "EHOSTDOWN", 69, "the far end said no"),
        ("bad.failed", ("code=nonsense",), "EIO", 1, ""),
        ("bad.failed", ("code=ECANCELED",), "EIO", 1, ""),  # only callers cancel
        ("bad.oserror", (), "ENOSPC", 1, "/somewhere"),
        ("bad.raise", (), "EPROTO", 70, "ZeroDivisionError: one by zero"),
        ("bad.garbage", (), "EPROTO", 70, ""),
        ("bad.sysexit", (), "EPROTO", 70, "SystemExit"),
        ("bad.exit", (), "EPROTO", 70, "exited with status 3"),
        ("bad.segfault", (), "EPROTO", 70, "SIGSEGV"),
        ("bad.loop", (), "ETIMEDOUT", 1, "within 0.3 s"),
        ("no.such.tool", (), "ENOENT", 1, "no longer has a tool"),
        ("bad.failed", ("--colour=red",), "EINVAL", 2, "colour"),
    ],
)
async def test_how_a_run_ends(
    tool: str, words: tuple[str, ...], code: str, status: int, said: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(
            world.inode(tool, FAULTY, timeout=0.3 if "loop" in tool else None), *words, stdin=b"{}"
        )
        assert (answer.code, answer.status) == (code, status)
        assert said in answer.message
        # "every failure ends in error, done, also one before start"
        assert [type(frame).__name__ for frame in answer.frames[-2:]] == ["Error", "Done"]
        assert (await world.call(world.inode("show.types", FAULTY), "x")).status == 0  # whatever failed


async def test_what_is_no_object_is_said(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(99)
        assert (answer.code, answer.status) == ("ENOENT", 1)
        gone = await world.call(world.inode("gone", None, status="broken: it is gone"))  # type: ignore[arg-type]
        assert (gone.code, gone.status) == ("EHOSTDOWN", 69)
        assert "it is gone" in gone.message


async def test_help_and_usage_need_no_host(tmp_path: Path) -> None:
    many = ",".join(f'"p{n}":{{"type":"string","description":"{"x" * 200}"}}' for n in range(9000))
    async with serving(tmp_path) as world:
        large = world.inode("echo", schema=f'{{"type":"object","properties":{{{many}}}}}'.encode())
        async with world.begun(large, "--help") as runner:
            while await runner.hear():  # more output than a message holds
                pass
        assert runner.status == 0
        assert len(runner.out) > wire.MAX_MESSAGE
        schema = b'{"type":"object","properties":{"text":{"type":"string"}}}'
        async with world.begun(world.inode("echo", schema=schema), flags=wire.TTY_STDIN) as runner:
            while await runner.hear():
                pass
        # "No argument and a terminal: a tool prints short usage from its schema on stderr and exits 2"
        assert (runner.status, runner.out) == (2, b"")
        assert b"usage" in runner.err
        assert len(world.pool) == 0


async def test_text_for_people(tmp_path: Path) -> None:
    # "In text mode errors go to stderr as `<object>: <CODE>: <message>`"
    async with serving(tmp_path) as world:
        async with world.begun(
            world.inode("bad.invalid", FAULTY), "{}", environ=("CTX_OUTPUT=text",)
        ) as runner:
            while await runner.hear():
                pass
        assert (runner.out, runner.err, runner.status) == (b"", b"bad.invalid: EINVAL: no such colour\n", 2)
        async with world.begun(
            world.inode("show.signals", FAULTY), "{}", flags=wire.TTY_STDOUT | wire.TTY_STDERR
        ) as runner:
            while await runner.hear():
                pass
        assert b"streamed returned" in runner.out.replace(b"\n", b"") or b"streamed " in runner.out
        assert b"half way" in runner.err
        # abi.md 10.12
        assert b"seen" not in runner.out + runner.err


# -- neighbours


async def test_a_runner_that_never_reads_holds_nobody_else_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        flood, types = world.inode("bad.flood", FAULTY), world.inode("show.types", FAULTY)
        async with world.begun(flood, "{}") as silent:
            await silent.until(b'"delta"')
            for _ in range(20):  # in the same host
                assert (await world.call(types, "x")).status == 0


async def test_hosts_that_flood_starve_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        flood, types = world.inode("bad.flood", FAULTY), world.inode("show.types", FAULTY)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(_drain, world, flood)
            for _ in range(20):
                assert (await world.call(types, "x")).status == 0
            nursery.cancel_scope.cancel()


async def _drain(world: World, inode: int) -> None:
    async with world.begun(inode, "{}") as runner:
        while await runner.hear():
            runner.out = b""


async def test_a_stuck_call_is_let_go_and_its_neighbours_finish(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        hang = world.inode("bad.hang", FAULTY, timeout=0.2)
        sleep = world.inode("bad.sleep", FAULTY)
        who = world.inode("show.who", FAULTY)
        answers = []

        async def neighbour() -> None:
            answers.append(await world.call(sleep, "seconds=2.5"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            assert (await world.call(hang, "{}")).code == "ETIMEDOUT"
            stuck = next(host for host in world.pool.by_pid.values() if host.retired)
            assert stuck.calls == 1
            world.pool.sweep(0)
            assert (await world.call(who, "{}")).status == 0  # in another host
            assert not answers
        assert answers[0].output == "rested"
        with trio.fail_after(PATIENCE):
            await stuck.exited.wait()
        assert stuck.status == -signal.SIGKILL


async def test_the_memory_limit_of_a_run_s_output(tmp_path: Path) -> None:
    async with serving(tmp_path, output_bytes=1 << 20) as world:
        answer = await world.call(world.inode("bad.flood", FAULTY), "{}")
        assert (answer.code, answer.status) == ("EFBIG", 1)
        assert len(answer.output) < 2 << 20


# -- the daemon's own end


@pytest.mark.parametrize("watched", [False, True])
async def test_a_daemon_that_stops_says_so(watched: bool, tmp_path: Path) -> None:
    # "69: EHOSTDOWN (daemon lost during a call ...)"
    async with serving(tmp_path) as world:
        inode = world.inode("wait")
        await world.pid()
        with world.connected() as runner:
            async with trio.open_nursery() as runs:
                world.scope.cancel()
                await world.stopped.wait()
                runs.start_soon(world.exec.serve, world.listener, runs)
                # From then on a task of its own watches a runner that wants to send input.
                await send(runner.stream, hello(inode, *([] if watched else ["{}"])))
                await awaited(lambda: bool(world.runs.active))
                while watched and not runner.wanted:
                    assert await runner.hear()
                runner.wanted = 0
                runs.cancel_scope.cancel()
            answer = await runner.answer()
        assert (answer.code, answer.status) == ("EHOSTDOWN", 69)
        assert isinstance(answer.frames[-1], frames.Done)


async def test_greetings_that_do_not_end_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortexfs.core.wire.GREETING_SECONDS", 0.05)
    async with serving(tmp_path) as world:
        for said in (b"", b"CTX1", hello(1, "x" * 1000)[:-1]):
            with world.connected() as runner:
                await send(runner.stream, said)
                assert await runner.answer() == ([], None, b"")


async def test_a_user_has_a_share_of_the_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=8) as world:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for stream in silent:
            stream.connect(world.listener.getsockname())
            stream.setblocking(False)
        refused = 0
        for stream in silent[2:]:
            refused += await Runner(stream).answer() == ([], None, b"")
            stream.close()
        assert refused == 18
        for stream in silent:
            stream.close()
        while (await world.call(world.inode("echo"), "back")).status != 0:
            pass  # the service needs a moment to notice that the clients have left


async def test_a_large_input_and_a_larger_one(tmp_path: Path) -> None:
    # "At most 16 MiB of input; more is EMSGSIZE"
    async with serving(tmp_path) as world:
        echo = world.inode("echo")
        text = "x" * ((16 << 20) - 11)
        async with world.begun(echo, "text=" + text[: 6 << 20]) as runner:
            while await runner.hear():
                pass
        assert runner.status == 0
        assert (await _fed(world, echo, f'{{"text":"{text}"}}'.encode())) == 0
        assert (await _fed(world, echo, f'{{"text":"{text}x"}}'.encode())) == 2


async def _fed(world: World, inode: int, stdin: bytes) -> int | None:
    async with world.begun(inode) as runner:
        while not runner.wanted:
            assert await runner.hear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_feed, runner.stream, stdin)
            while await runner.hear():
                runner.out = runner.out[-1000:]
    return runner.status


async def _feed(stream: socket.socket, stdin: bytes) -> None:
    try:
        for start in range(0, len(stdin), 65536):
            await send(stream, wire.message(wire.STDIN, stdin[start : start + 65536]))
        await send(stream, wire.message(wire.STDIN))
    except OSError:  # the input was too large, and nobody reads any more
        pass


async def test_a_host_dies_for_every_run_in_it(tmp_path: Path) -> None:
    # "70: internal error (a host died, a bug)"
    async with serving(tmp_path) as world, AsyncExitStack() as stack:
        sleep = world.inode("bad.sleep", FAULTY)
        runners = [await stack.enter_async_context(world.begun(sleep, "{}")) for _ in range(5)]
        for runner in runners:
            await runner.until(b"asleep")  # a call that a dead host has not begun runs in another one
        assert [host.calls for host in world.pool.by_pid.values()] == [5]
        os.kill(next(iter(world.pool.by_pid)), signal.SIGKILL)
        answers = [await runner.answer() for runner in runners]
        assert [(answer.code, answer.status) for answer in answers] == [("EPROTO", 70)] * 5
        assert [answer.message for answer in answers if "SIGKILL" not in answer.message] == []


def test_the_environment_is_a_table() -> None:
    from cortexfs.core.wire import passed_on

    given = [b"PATH=/bin", b"LC_ALL=C", b"SECRET=x", b"LD_PRELOAD=/evil.so", b"TERM", b"HOME=a=b"]
    assert passed_on(given) == {b"PATH": b"/bin", b"LC_ALL": b"C", b"TERM": b"", b"HOME": b"a=b"}


def test_calls_carry_what_was_asked() -> None:
    call = hostcalls.CallRequest(
        "r", hostcalls.Invocation("t", None, "0", "exec"), [b"\xff"], None, 0, {b"A": b"\xff"}
    )
    import msgspec

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=hostcalls.Request) == call
