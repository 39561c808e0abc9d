"""host/process/jsonl.py: one warm program that answers many calls, friendly and hostile, in real hosts."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cortexfs.core import frames, hostcalls
from tests.places import PROJECT
from tests.shell import declaring
from tests.shell.calling import Answer, World, serving
from tests.shell.declaring import program, python
from tests.waiting import awaited

PAGE = (PROJECT / "docs" / "plugins.md").read_text()
# A child that executes the source in each call; each call is answered in a thread.
CHILD = """
import json, os, sys, threading, time
lock = threading.Lock()
seen = []
def say(**fields):
    with lock:
        sys.stdout.write(json.dumps(fields) + "\\n")
        sys.stdout.flush()
def raw(text):
    with lock:
        os.write(1, text.encode())
def serve(call):
    id, do = call["id"], call["input"].get("do")
    if do:
        exec(do, {**globals(), "id": id, "call": call})
    else:
        say(id=id, output=f"{os.getpid()} {len(seen)}")
while line := sys.stdin.readline():
    call = json.loads(line)
    seen.append(call)
    if "cancel" not in call:
        threading.Thread(target=serve, args=(call,), daemon=True).start()
"""


@pytest.fixture
def plugin(tmp_path: Path) -> hostcalls.Plugin:
    return made(tmp_path, CHILD)


def made(tmp_path: Path, text: str, **fields: Any) -> hostcalls.Plugin:
    place = tmp_path / "bin"
    place.mkdir(exist_ok=True)
    return declaring.plugin([program(python(place, text), **fields)], "jsonl")


async def call(world: World, plugin: hostcalls.Plugin, do: str = "", **fields: Any) -> Answer:
    return await world.call(world.inode("t", plugin, **fields), asked(do))


def asked(do: str) -> str:
    return msgspec.json.encode({"do": do}).decode()


def wait_for(file: Path) -> str:
    return f"while not os.path.exists({str(file)!r}): time.sleep(0.01)"


async def pid(world: World, plugin: hostcalls.Plugin) -> int:
    answer = await call(world, plugin)
    assert answer.status == 0, answer
    return int(answer.output.split()[0])


async def test_one_child_answers_many_calls(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        answers = [(await call(world, plugin)).output.split() for _ in range(3)]
        assert [number for _, number in answers] == ["1", "2", "3"]
        assert len({child for child, _ in answers}) == 1
        told = msgspec.json.decode((await call(world, plugin, "say(id=id, output=json.dumps(call))")).output)
        assert told.pop("input")["do"]
        assert told == {"id": 4, "tool": "t", "cwd": os.getcwd()}


async def test_it_may_stream(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    # issue 5: "may stream progress, observer and media frames"
    do = """
say(id=id, progress="half", more=1)
say(id=id, observer={"content": "note"})
say(id=id, observer={"source": "s", "content": "note"})
say(id=id, media={"media_type": "file", "mime_type": "text/plain", "url": "/a"})
say(id=id, delta="Hel")
say(id=id, output="lo")
"""
    async with serving(tmp_path) as world:
        said = (await call(world, plugin, do)).frames
        assert [type(frame).__name__ for frame in said] == [
            "Start", "Progress", "Observer", "Observer", "Delta", "Media", "Delta", "Done"
        ]  # fmt: skip
        notes = [(f.source, f.content) for f in said if isinstance(f, frames.Observer)]
        assert notes == [(None, "note"), ("s", "note")]
        (medium,) = [frame.attachment for frame in said if isinstance(frame, frames.Media)]
        assert medium["url"] == "/a"


async def test_pieces_come_when_they_are_said(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        go = tmp_path / "go"
        do = f"say(id=id, delta='first')\n{wait_for(go)}\nsay(id=id, output='')"
        async with world.begun(world.inode("t", plugin), asked(do)) as runner:
            await runner.until(b"first")
            go.touch()
            assert (await runner.answer()).status == 0


async def test_errors(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        for fields, expected in (
            ("is_error=True", ("EIO", 1)),
            ("is_error=True, code='EACCES'", ("EACCES", 13)),
            ("is_error=True, code='NONE'", ("EIO", 1)),
            ("code='EACCES'", (None, 0)),
        ):
            answer = await call(world, plugin, f"say(id=id, output='why', {fields})")
            assert (answer.code, answer.status) == expected
            assert answer.output + answer.message == "why"


async def test_calls_are_answered_out_of_order(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        go = tmp_path / "go"
        do = f"{wait_for(go)}\nsay(id=id, output=str(os.getpid()))"
        inode = world.inode("t", plugin)
        async with world.begun(inode, asked(do)) as first, world.begun(inode, asked(do)) as second:
            assert await pid(world, plugin) == child
            go.touch()
            assert {(await first.answer()).output, (await second.answer()).output} == {str(child)}


async def test_large_requests_and_answers_side_by_side(tmp_path: Path) -> None:
    plugin = made(tmp_path, CHILD, output_bytes=32 << 20)
    do = "say(id=id, output=call['input']['text'])"
    async with serving(tmp_path) as world:
        inode = world.inode("t", plugin)
        same: list[bool] = []

        async def echo(letter: str) -> None:
            text = letter * (5 << 20)
            answer = await world.call(inode, msgspec.json.encode({"do": do, "text": text}).decode())
            same.append(answer.output == text)

        async with trio.open_nursery() as nursery:
            for letter in "abc":
                nursery.start_soon(echo, letter)
        assert same == [True] * 3


@pytest.mark.parametrize(
    ("do", "why"),
    [
        ("raw('garbage\\n')", 'it printed "garbage", which is not an answer (JSON is malformed'),
        ("raw('\\n')", ", which is not an answer ("),
        ("raw('[1]\\n')", ", which is not an answer ("),
        ("say(output='x')", ", which is not an answer ("),
        ("say(id='1', output='x')", ", which is not an answer ("),
        ("say(id=id, output=1)", "is not an answer (Expected `str | null`, got `int` - at `$.output`)"),
        ("say(id=9**9, output='x')", "it answered the call 387420489, which was never sent"),
        ("say(id=0, output='x')", "broke the protocol: it answered the call 0, which was never sent"),
        ("say(id=-1, output='x')", "broke the protocol: it answered the call -1, which was never sent"),
        ("raw('[' * 100000 + '\\n')", ", which is not an answer ("),
        ("os.write(1, b'\\xff\\n')", ", which is not an answer ("),
        ("while 1: raw('x' * 65536)", "it wrote a line of over 1048576 bytes, which max_output_bytes"),
        ("os._exit(3)", "ended with exit status: 3"),
        ("print('no luck', file=sys.stderr); os._exit(3)", "exit status: 3; it printed last: no luck"),
        ("os.abort()", "ended with signal: 6 (SIGABRT)"),
        ("os.close(1); time.sleep(1000)", "closed its output"),
    ],
)  # fmt: skip
async def test_a_child_that_breaks_the_protocol_or_dies(
    tmp_path: Path, plugin: hostcalls.Plugin, do: str, why: str
) -> None:
    # jsonl.py: "a child that breaks the protocol or dies ends its calls with EPROTO"
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        (host,) = world.pool.by_pid
        async with world.begun(world.inode("t", plugin), asked("time.sleep(1000)")) as neighbour:
            await neighbour.until(b"start")
            while int((await call(world, plugin)).output.split()[1]) < 3:
                pass  # until the child has seen the neighbour's call
            answer = await call(world, plugin, do)
            assert (answer.code, answer.status) == ("EPROTO", 70)
            assert why in answer.message
            assert (await neighbour.answer()).code == "EPROTO"
        again = await call(world, plugin)
        assert again.output.split() != [str(child), "1"]
        assert again.output.split()[1] == "1"
        assert list(world.pool.by_pid) == [host]
        await awaited(lambda: not os.path.exists(f"/proc/{child}"))


async def test_a_flood_ends_its_own_call_alone(tmp_path: Path) -> None:
    plugin = made(tmp_path, CHILD, output_bytes=100_000)
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        stop = "while {'cancel': id} not in seen: say(id=id, delta='x' * 1000)\nsay(id=id, output='')"
        answer = await call(world, plugin, stop)
        assert (answer.code, answer.status) == ("EIO", 1)
        assert answer.message == "process-isolated tool 't' exceeded output limit of 100000 bytes"
        assert await pid(world, plugin) == child
        # A child that goes on after that is killed, with all its calls.
        answer = await call(world, plugin, "while 1: say(id=id, delta='x' * 1000)")
        assert answer.code == "EIO"
        await awaited(lambda: not os.path.exists(f"/proc/{child}"))
        assert await pid(world, plugin) != child


async def test_a_cancelled_call_is_told_and_may_end(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    do = (
        "say(id=id, delta='begun')\nwhile {'cancel': id} not in seen: time.sleep(0.01)\nsay(id=id, output='')"
    )
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        async with world.begun(world.inode("t", plugin), asked(do)) as runner:
            await runner.until(b"begun")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        # This takes longer than the time that the cancelled call would have had.
        answer = await call(world, plugin, "time.sleep(0.7)\nsay(id=id, output=str(os.getpid()))")
        assert answer.output == str(child)


async def test_a_child_that_does_not_let_go_is_ended_when_its_other_calls_have(
    tmp_path: Path, plugin: hostcalls.Plugin
) -> None:
    # abi.md 4.22
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        inode, go = world.inode("t", plugin), tmp_path / "go"
        do = f"{wait_for(go)}\nsay(id=id, output=str(os.getpid()))"
        async with world.begun(inode, asked(do)) as other:
            async with world.begun(inode, asked("say(id=id, delta='begun'); time.sleep(1000)")) as runner:
                await runner.until(b"begun")
                runner.stream.shutdown(socket.SHUT_WR)
                assert (await runner.answer()).code == "ECANCELED"
            while (new := await pid(world, plugin)) == child:
                pass
            go.touch()
            assert (await other.answer()).output == str(child)
        await awaited(lambda: not os.path.exists(f"/proc/{child}"))
        assert await pid(world, plugin) == new


async def test_a_timeout(tmp_path: Path) -> None:
    plugin = made(tmp_path, CHILD, timeout=3)
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        answer = await call(world, plugin, "time.sleep(1000)")
        assert (answer.code, answer.status) == ("ETIMEDOUT", 1)
        assert answer.message == "the tool t did not end within 3 s"
        await awaited(lambda: not os.path.exists(f"/proc/{child}"))


async def test_a_child_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    plugin = made(tmp_path, "import time\ntime.sleep(1000)", timeout=1)
    async with serving(tmp_path) as world:
        text = msgspec.json.encode({"x": "y" * (4 << 20)}).decode()
        inode = world.inode("t", plugin)
        got: list[str | None] = []

        async def ask() -> None:
            got.append((await world.call(inode, text)).code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert got == ["ETIMEDOUT"] * 3


async def test_a_call_does_not_wait_in_a_child_that_hangs(tmp_path: Path) -> None:
    # abi.md 11.49
    source = """
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if "input" in call:
        hangs = call["input"]["do"] == "hang"
        print(json.dumps({"id": call["id"], "delta" if hangs else "output": "begun"}), flush=True)
        while hangs: pass
"""
    plugin = made(tmp_path, source, timeout=30)
    async with serving(tmp_path) as world:
        async with world.begun(world.inode("t", plugin), asked("hang")) as runner:
            await runner.until(b"begun")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        answer = await call(world, plugin)  # the child is not given up yet
    assert answer.output == "begun", answer


async def test_calls_that_are_cancelled_at_any_moment(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        inode = world.inode("t", plugin)
        child = await pid(world, plugin)
        (host,) = world.pool.by_pid
        before = len(os.listdir(f"/proc/{host}/fd"))
        for step in range(80):
            await world.cancelled(inode, "{}", turns=step * 2)
        assert await pid(world, plugin) == child
        assert list(world.pool.by_pid) == [host]
        await awaited(lambda: len(os.listdir(f"/proc/{host}/fd")) <= before)


async def test_a_first_call_that_is_cancelled(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        assert await pid(world, made(tmp_path, CHILD))
        (identity,) = {host.identity for host in world.pool.by_pid.values()}
        for step in range(25):
            plugin = made(tmp_path, CHILD)
            inode = world.inode("t", plugin)
            async with world.begun(inode, "{}") as runner:
                for _ in range(step * 50):
                    await trio.lowlevel.checkpoint()
                runner.stream.shutdown(socket.SHUT_WR)
                await runner.answer()
            assert await pid(world, plugin)
            host = await world.pool.acquire(plugin, identity)  # a warm host, even if its caller has left
            world.pool.release(host, stuck=True)


async def test_what_cannot_be_started(tmp_path: Path) -> None:
    plugin = declaring.plugin([program("/nonexistent")], "jsonl")
    async with serving(tmp_path) as world:
        for _ in range(2):
            answer = await call(world, plugin)
            assert answer.code == "ENOENT"
            assert answer.message.startswith("failed to spawn process-isolated tool 't': ")


async def test_programs_are_shared_by_tools_of_one_command(tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    command = python(place, CHILD)
    tools = [program(command, name=name) for name in ("a", "b")]
    tools += [program(command, "x", name="c"), program(command, name="d", environment={"A": "1"})]
    plugin = declaring.plugin(tools, "jsonl")
    async with serving(tmp_path) as world:
        pids = []
        for name in "abcd":
            pids.append((await world.call(world.inode(name, plugin), "{}")).output.split()[0])
        assert pids[0] == pids[1]
        assert len(set(pids)) == 3


async def test_no_directory_of_a_caller_stays_in_use(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        child = await pid(world, plugin)
        (host,) = world.pool.by_pid
        tasks = f"/proc/{host}/task"
        await awaited(lambda: {os.readlink(f"{tasks}/{task}/cwd") for task in os.listdir(tasks)} == {"/"})
        assert os.readlink(f"/proc/{child}/cwd") == str(tmp_path / "bin")
        held = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
        assert not [name for name in held if name.startswith("socket:") or name == os.getcwd()]


async def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```python\n#!.*?\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    plugin = made(tmp_path, text)
    async with serving(tmp_path) as world:
        inode = world.inode("t", plugin)
        assert (await world.call(inode, '{"name":"Ann"}')).output == "Hello, Ann."
        assert (await world.call(inode, "{}")).output == "Hello, you."


async def test_the_program_of_the_documentation(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```sh\n#!.*?\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    place = tmp_path / "bin"
    place.mkdir()
    plugin = declaring.plugin([program(declaring.script(place, text))])
    async with serving(tmp_path) as world:
        inode = world.inode("t", plugin)
        for given, said in (('{"name":"Ann"}', "Hello, Ann."), ("{}", "Hello, you.")):
            answer = await world.call(inode, given, environ=("PATH=/usr/bin:/bin",))
            assert answer.output == said, answer.message
