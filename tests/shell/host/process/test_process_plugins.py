"""host/process/one_shot.py and host/process/children.py: tools that are programs, friendly and hostile, in
real hosts."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cortexfs.core import hostcalls, wire
from cortexfs.core.manifest.targets import ProgramTarget
from cortexfs.host.confine import limits
from cortexfs.peers.streams import send
from tests.shell import declaring
from tests.shell.calling import Answer, Runner, World, serving
from tests.shell.declaring import program, python, script
from tests.waiting import awaited

MIB = 1 << 20
CHUNK = 64 << 10


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A directory that describers and other users may enter."""
    place = tmp_path / "bin"
    place.mkdir()
    return place


def only(world: World, tool: ProgramTarget, **settings: Any) -> int:
    return world.inode(tool.name, declaring.plugin([tool]), schema=b"{}", **settings)


async def call(
    where: Path, text: str, stdin: bytes = b"{}", environ: tuple[str, ...] = (), **fields: Any
) -> Answer:
    return await run(where, program(script(where, text), **fields), stdin, environ)


async def run(
    where: Path, tool: ProgramTarget, stdin: bytes = b"{}", environ: tuple[str, ...] = ()
) -> Answer:
    """Make one call in a daemon of its own."""
    with tempfile.TemporaryDirectory(dir=where.parent) as place:
        async with serving(Path(place)) as world, world.begun(only(world, tool), environ=environ) as runner:
            while not runner.wanted and await runner.hear():
                pass
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_feed, runner, stdin)
                runner.wanted = 0
                return await runner.answer()


async def _feed(runner: Runner, stdin: bytes) -> None:
    """Send standard input as a runner does: no message is over 1 MiB."""
    for start in range(0, len(stdin), CHUNK):
        await send(runner.stream, wire.message(wire.STDIN, stdin[start : start + CHUNK]))
    await send(runner.stream, wire.message(wire.STDIN))


# -- the environment of the child


async def test_the_request(where: Path) -> None:
    # abi.md 11.12
    answer = await call(where, "cat >got; echo '\"read\"'", b'{ "text": "h\xc3\xa9" }')
    assert (answer.output, answer.status) == ("read", 0)
    got = (where / "got").read_bytes()
    assert msgspec.json.decode(got) == {"tool": "t", "input": {"text": "hé"}}
    assert (got.count(b"\n"), got[-1:], b" " in got) == (1, b"\n", False)


async def test_the_environment_is_nothing_but_what_is_inherited_or_set(where: Path) -> None:
    # abi.md 11.10
    script(where, "")
    text = 'env | sort | grep -v "^_=\\|^PWD=\\|^SHLVL=\\|^OLDPWD=" >got; echo \'""\''
    environ = ("PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/home/x")
    assert (await call(where, text, environ=environ)).status == 0
    # abi.md 11.10
    assert (where / "got").read_text() == "PATH=/usr/bin:/bin\n"
    fields: dict[str, Any] = {
        "inherited": ("LANG", "HOME", "TZ", "CORTEXFS_CWD", "PATH"),
        "environment": {"HOME": "/h", "X": "1"},
    }
    assert (await call(where, text, environ=environ, **fields)).status == 0
    assert (where / "got").read_text().splitlines() == [
        f"CORTEXFS_CWD={os.getcwd()}", "HOME=/h", "LANG=C.UTF-8", "PATH=/usr/bin:/bin", "X=1"
    ]  # fmt: skip


async def test_where_it_runs_and_with_which_arguments(where: Path) -> None:
    # abi.md 11.9
    command = script(where, 'printf \'"%s %s"\' "$(pwd)" "$1"')
    async with serving(where.parent) as world:
        for place in (where, where.parent):
            tool = program(command, "$HOME;*", working_dir=str(place))
            assert (await world.call(only(world, tool), stdin=b"{}")).output == f"{place} $HOME;*"


async def test_no_signal_is_ignored_or_blocked_and_no_descriptor_is_open(where: Path) -> None:
    answer = await call(where, '(grep "^Sig[BI]" /proc/self/status; ls -l /proc/$$/fd) >&2; exit 1')
    masks = re.findall(r"^Sig(?:Blk|Ign):\t(\w+)$", answer.message, re.MULTILINE)
    mine = sum(1 << number - 1 for number in signal.valid_signals())
    assert [int(mask, 16) & mine for mask in masks] == [0, 0]
    assert re.findall(r" (\d+) -> (\w+)", answer.message)[:3] == [("0", "pipe"), ("1", "pipe"), ("2", "pipe")]
    assert answer.message.count(" -> ") <= 4, answer.message  # and a descriptor of the script itself


async def test_limits_of_the_manifest(where: Path) -> None:
    # abi.md 11.11
    text = "(ulimit -S -v; ulimit -H -v; ulimit -S -t; ulimit -H -t) | tr '\\n' ' ' >&2; exit 3"
    answer = await call(where, text, memory_bytes=64 * MIB, cpu_seconds=7)
    assert answer.message == "65536 65536 7 7"
    answer = await call(where, text)
    assert answer.message == "unlimited unlimited unlimited unlimited"


async def test_the_input_is_validated_before_the_program_starts(where: Path) -> None:
    # issue 5: "schema validation before every execute"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = await call(where, "touch started", b'{"n":"x"}', input_schema=schema)
    assert (answer.code, answer.status) == ("EINVAL", 2)
    assert not (where / "started").exists()


# -- the child's answers; test_process_answers.py has the rest


async def test_answers_through_a_host(where: Path) -> None:
    for text, stdin, expected in (
        ('echo \'{"output":"no","is_error":true}\'', b"{}", ("EIO", "", 1)),
        ("echo sorry >&2; exit 5", b"{}", ("EIO", "", 1)),
        ("kill -SEGV $$", b"{}", ("EPROTO", "", 70)),
        ("echo garbage", b"{}", ("EPROTO", "", 70)),
        ("exec 1>&-; cat >/dev/null", b"{}", (None, "", 0)),
    ):
        answer = await call(where, text, stdin)
        assert (answer.code, answer.output, answer.status) == expected, text


async def test_a_failure_without_a_word_is_told(where: Path) -> None:
    # abi.md 4.20
    answer = await call(where, """echo '{"output":" ","is_error":true}'""")
    assert (answer.code, answer.message) == ("EIO", "it failed without a message")


async def test_what_cannot_be_started(where: Path) -> None:
    # abi.md 4.29
    script(where, "")
    plain = where / "plain"
    plain.write_text("#!/bin/sh\n")
    for tool, code in (
        (program(str(where / "missing")), "ENOENT"),
        (program(str(plain)), "EACCES"),
        (program(script(where, ""), working_dir=str(where / "missing")), "ENOENT"),
        (program(script(where, ""), "x" * 200_000), "E2BIG"),
    ):
        answer = await run(where, tool)
        assert answer.code == code, answer
        assert answer.message.startswith("failed to spawn process-isolated tool 't': ")


async def test_an_interpreter_that_is_missing_is_named(where: Path) -> None:
    # abi.md 11.48
    answer = await run(where, program(script(where, "", "/no/such/sh")))
    assert answer.code == "ENOENT"
    assert "'t': its #! line names /no/such/sh, which is no program here: install it" in answer.message


# -- size, time, and leftover processes


async def test_large_inputs_and_outputs_do_not_deadlock(where: Path) -> None:
    # abi.md 11.14
    command = python(
        where, "import sys,json\nsys.stdout.write(json.dumps({'output': json.load(sys.stdin)['input']['x']}))"
    )
    text = "x" * (16 * MIB - 20)
    stdin = msgspec.json.encode({"x": text})
    answer = await run(where, program(command, output_bytes=40 * MIB), stdin)
    assert answer.status == 0, answer.message
    assert answer.output == text
    # ... and in lockstep, with both pipes full
    cat = program(script(where, "echo '\"'; tr -d '\"{}'; echo '\"'"), output_bytes=40 * MIB)
    assert (await run(where, cat, stdin)).code == "EPROTO"


@pytest.mark.parametrize("text", ["echo '\"done\"'", "exec <&-; sleep 0.05; echo '\"done\"'"])
async def test_a_child_that_never_reads_its_request(where: Path, text: str) -> None:
    # abi.md 11.14
    answer = await call(where, text, msgspec.json.encode({"x": "y" * (15 * MIB)}))
    assert (answer.output, answer.status) == ("done", 0)


@pytest.mark.parametrize("where_to", ["", ">&2"])
async def test_a_flood_is_cut_off_while_it_is_read(where: Path, where_to: str) -> None:
    # abi.md 11.11
    answer = await call(where, f"exec yes {where_to}", output_bytes=100_000)
    assert (answer.code, answer.status) == ("EIO", 1)
    assert answer.message == "process-isolated tool 't' exceeded output limit of 100000 bytes"


async def test_output_at_the_limit_is_whole(where: Path) -> None:
    text = "printf '\"'; head -c 99998 /dev/zero | tr '\\0' x; printf '\"'"
    answer = await call(where, text, output_bytes=100_000)
    assert (len(answer.output), answer.status) == (99_998, 0)
    assert (await call(where, text + "; echo", output_bytes=100_000)).code == "EIO"


async def test_a_child_with_a_timeout_that_says_much_is_read(where: Path) -> None:
    # abi.md 11.11
    text = "printf '\"'; head -c 500000 /dev/zero | tr '\\0' x; printf '\"'"
    answer = await call(where, text, timeout=20)
    assert (len(answer.output), answer.status) == (500_000, 0)


async def test_a_timeout_ends_the_whole_group(where: Path) -> None:
    # abi.md 11.14
    async with serving(where.parent) as world:
        pid = await world.pid()
        tool = program(script(where, "sleep 1000 & sleep 1000"), timeout=1)
        answer = await world.call(only(world, tool), stdin=b"{}")
        assert (answer.code, answer.status) == ("ETIMEDOUT", 1)
        assert answer.message == "the tool t did not end within 1 s"
        assert children_of(host_of(world, "p")) == []
        assert await world.pid() == pid


async def test_a_grandchild_that_keeps_the_pipe_holds_nobody_up(where: Path) -> None:
    # abi.md 11.14
    async with serving(where.parent) as world:
        for text in ("sleep 1000 & echo '\"done\"'", "setsid sleep 1000 & echo '\"done\"'"):
            answer = await world.call(only(world, program(script(where, text))), stdin=b"{}")
            assert (answer.output, answer.status) == ("done", 0)
        await awaited(lambda: all(not children_of(host.pid) for host in world.pool.by_pid.values()))


def host_of(world: World, name: str) -> int:
    (pid,) = [host.pid for host in world.pool.by_pid.values() if host.plugin.name == name]
    return pid


def children_of(pid: int) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # the host may have ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # or one of its threads
                found += (task / "children").read_text().split()
    return found


@pytest.mark.parametrize(
    "text",
    [
        "trap '' INT TERM HUP; sleep 1000 & sleep 1000",
        "exec 0<&- 1<&- 2<&-; sleep 1000",
        "setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000",
        "kill -STOP $$",
    ],
)
async def test_a_cancelled_call_leaves_no_process(where: Path, text: str) -> None:
    # abi.md 4.22
    async with serving(where.parent) as world:
        tool = program(script(where, f"touch begun; {text}"))
        async with world.begun(only(world, tool), "{}") as runner:
            await awaited((where / "begun").exists)
            pid = host_of(world, "p")
            runner.stream.shutdown(socket.SHUT_WR)
            answer = await runner.answer()
            assert (answer.code, answer.status) == ("ECANCELED", 130)
        assert children_of(pid) == []
        assert not world.pool.by_pid[pid].retired


async def test_a_call_that_is_cancelled_at_any_moment(where: Path) -> None:
    # process.py: "a host raises its cancellation at any instruction"
    async with serving(where.parent) as world:
        inode = only(world, program(script(where, "echo '\"done\"'")))
        assert (await world.call(inode, "{}")).output == "done"
        pid = host_of(world, "p")
        files = len(os.listdir(f"/proc/{pid}/fd"))
        for step in range(60):
            await world.cancelled(inode, "{}", turns=step * 3)
        assert (await world.call(inode, "{}")).output == "done"
        assert host_of(world, "p") == pid
        await awaited(lambda: not children_of(pid))
        await awaited(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= files)


@pytest.fixture
def bounded() -> None:
    """Skip the test where nothing limits root's processes, as a bomb would take the machine."""
    if os.geteuid() == 0 and not any(os.access(place, os.W_OK) for _, place in limits.hierarchies()):
        pytest.skip("no cgroups here")


@pytest.mark.usefixtures("bounded")
async def test_a_fork_bomb_ends_with_its_call(where: Path) -> None:
    async with serving(where.parent) as world:
        world.pool._limits = hostcalls.HostLimits(1 << 30, 40, 256)
        bomb = program(script(where, "f() { f | f & f; }; f 2>/dev/null; sleep 1000"), timeout=1)
        answer = await world.call(only(world, bomb, timeout=1), stdin=b"{}")
        assert answer.status in (1, 70), answer
        await awaited(lambda: all(not children_of(host.pid) for host in world.pool.by_pid.values()))
        good = program(script(where, "echo '\"good\"'"))
        assert (await world.call(only(world, good), stdin=b"{}")).output == "good"


@pytest.mark.usefixtures("bounded")
async def test_a_bomb_in_sessions_of_its_own_ends_with_its_call(where: Path) -> None:
    # children.py: "A process that left the group becomes the host's child when its parent ends"
    async with serving(where.parent) as world:
        world.pool._limits = hostcalls.HostLimits(1 << 30, 40, 256)
        command = script(where, 'setsid "$0" & setsid "$0" & sleep 1000')
        answer = await world.call(only(world, program(command, timeout=1), timeout=1), stdin=b"{}")
        assert answer.status in (1, 70), answer
        await awaited(lambda: not running(command))


def running(command: str) -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if command.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                found.append(name)
    return found


async def test_a_killed_host_takes_its_children_along(where: Path) -> None:
    async with serving(where.parent) as world:
        tool = program(script(where, "echo $$ >pid.new; mv pid.new pid; sleep 1000"))
        async with world.begun(only(world, tool), "{}") as runner:
            await awaited((where / "pid").exists)
            os.kill(host_of(world, "p"), 9)
            answer = await runner.answer()
            assert (answer.code, answer.status) == ("EPROTO", 70)
        await awaited(lambda: not os.path.exists(f"/proc/{(where / 'pid').read_text().strip()}"))


async def test_calls_side_by_side_do_not_end_each_other(where: Path) -> None:
    async with serving(where.parent) as world:
        slow = program(script(where, "(sleep 0.3; echo in >>seen) & wait; echo '\"slow\"'"), name="slow")
        fast = program(script(where, "setsid sleep 1000 & echo '\"fast\"'"), name="fast")
        both = declaring.plugin([slow, fast])
        one, two = world.inode("slow", both), world.inode("fast", both)
        async with world.begun(one, "{}") as runner:
            for _ in range(10):
                assert (await world.call(two, "{}")).output == "fast"
            assert (await runner.answer()).output == "slow"
        await awaited(lambda: not children_of(host_of(world, "p")))


# -- the log


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "cortexfs"):
        yield caplog


async def test_what_is_said_on_standard_error_is_in_the_log_alone(
    where: Path, logged: pytest.LogCaptureFixture
) -> None:
    # issue 5: "stderr kept for the log"
    async with serving(where.parent) as world:
        tool = program(script(where, "echo a warning >&2; echo '\"fine\"'"))
        answer = await world.call(only(world, tool), stdin=b"{}")
        assert (answer.output, answer.err) == ("fine", b"")
        await awaited(lambda: "host output: t: a warning" in logged.text)
