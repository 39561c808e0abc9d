"""A host, or a warm child, in which calls leak descriptors or threads. Another takes its place before later
calls suffer. "A tool's leaked descriptors and threads hit later calls of its host (replace it)"."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from cortexfs.core import hostcalls
from cortexfs.host import serve
from cortexfs.host.call.runtime import Runtime, ToolCancelled
from tests.shell import calling, declaring
from tests.shell.calling import World, serving
from tests.shell.declaring import program, python
from tests.waiting import awaited

CALLS = 40  # far more than the calls between two looks
LEAKS = [
    ("--descriptors", "220"),  # of the 256 that a host may have
    ("--descriptors", "16"),
    ("--threads", "100"),
    ("--threads", "8"),
]
CHILD = """
import json, os, sys, threading
stay = threading.Event().wait
threading.stack_size(1 << 18)
for line in sys.stdin:
    call = json.loads(line)
    exec(call["input"]["do"])
    print(json.dumps({"id": call["id"], "output": str(os.getpid())}), flush=True)
"""


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "LIMITS", msgspec.structs.replace(calling.LIMITS, processes=512))


async def replaced(world: World, tool: int, *words: str) -> list[str]:
    """Call until another process answers. Returns the pids that answered; each call succeeded."""
    answers: list[str] = []
    while len(set(answers)) < 2:
        answer = await world.call(tool, *words)
        assert answer.status == 0, answer
        answers.append(answer.output)
        assert len(answers) < CALLS
    return answers


@pytest.mark.parametrize("leak", LEAKS, ids=" ".join)
async def test_a_host_in_which_calls_leave_much_behind_is_replaced(
    leak: tuple[str, str], tmp_path: Path
) -> None:
    # abi.md 4.51
    async with serving(tmp_path) as world:
        for _ in range(CALLS):
            await world.pid()
        (first,) = world.pool.by_pid.values()
        answers = await replaced(world, world.inode("leak"), *leak)
        assert (answers[0], first.retired) == (str(first.pid), True)
        await awaited(lambda: first.pid not in world.pool.by_pid)  # the second may be worn by now, too
        assert first.status == 0  # the host was asked to leave


async def test_calls_of_a_worn_host_that_go_on_come_to_their_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        async with world.begun(world.inode("wait"), "{}") as waiting:
            await waiting.until(b"begun")
            (first,) = world.pool.by_pid.values()
            answers = await replaced(world, world.inode("leak"), "--descriptors", "220")
            assert answers == [str(first.pid), answers[-1]]
            assert first.pid in world.pool.by_pid
            waiting.stream.shutdown(socket.SHUT_WR)
            assert (await waiting.answer()).code == "ECANCELED"
        await awaited(lambda: first.pid not in world.pool.by_pid)
        assert first.status == 0


async def test_a_host_in_which_a_library_leaves_much_behind_is_replaced(tmp_path: Path) -> None:
    library = declaring.library(declaring.build(tmp_path, declaring.NATIVE / "fixture.c"))
    async with serving(tmp_path) as world:
        await replaced(world, world.inode("leak", library), "{}")


@pytest.mark.parametrize(
    "do", ["os.open('/dev/null', os.O_RDONLY)", "threading.Thread(target=stay, daemon=True).start()"]
)
async def test_a_warm_child_in_which_calls_leave_much_behind_is_replaced(do: str, tmp_path: Path) -> None:
    child = declaring.plugin([program(python(tmp_path, CHILD))], "jsonl")
    async with serving(tmp_path) as world:
        tool = world.inode("t", child)
        asked = [msgspec.json.encode({"do": each}).decode() for each in ("", f"[{do} for _ in range(16)]")]
        assert len({(await world.call(tool, asked[0])).output for _ in range(CALLS)}) == 1
        (host,) = world.pool.by_pid
        await replaced(world, tool, asked[1])
        assert [*world.pool.by_pid] == [host]


def test_a_cancellation_leaves_no_copy_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # a daemon once waited for the end of a call that was over, and did not use its host
    ours, theirs = socket.socketpair()
    control, its = socket.socketpair()
    with ours, theirs, control, its:
        runtime, copied = Runtime(theirs), os.dup

        def struck(number: int) -> int:
            copy = copied(number)
            leaver = threading.Thread(target=runtime.interrupt)
            leaver.start()
            leaver.join()
            return copy

        monkeypatch.setattr(os, "dup", struck)
        with pytest.raises(ToolCancelled):
            serve._Host(its, hostcalls.Plugin("p", "1", "python", "m:p"))._is_worn(runtime)
        theirs.close()
        ours.setblocking(False)
        assert ours.recv(1) == b""
