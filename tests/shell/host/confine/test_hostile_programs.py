"""Faults of programs that test_process_plugins.py and test_jsonl_plugins.py leave out: memory, bombs, and a
host killed in a call. Issue 2: "allocates 10 GB, forks a bomb, floods; host killed in a call"."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.core import hostcalls
from cortexfs.core.manifest.toml import Protocol
from cortexfs.host.confine import limits
from tests.shell import declaring
from tests.shell.calling import Answer, World, serving
from tests.shell.declaring import program, python
from tests.waiting import awaited

KINDS: dict[Protocol, str] = {
    "json": """
import json, os, sys, time
call = json.load(sys.stdin)
exec(call["input"].get("do", ""))
print(json.dumps(str(os.getpid())))
""",
    "jsonl": """
import json, os, sys, time
for line in sys.stdin:
    call = json.loads(line)
    if "id" in call:
        exec(call["input"].get("do", ""))
        print(json.dumps({"id": call["id"], "output": str(os.getpid())}), flush=True)
""",
}
BOMB = """
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
"""


@pytest.fixture(params=KINDS)
def plugin(request: pytest.FixtureRequest, tmp_path: Path) -> hostcalls.Plugin:
    where = tmp_path / "bin"
    where.mkdir()
    return declaring.plugin([program(python(where, KINDS[request.param]))], request.param)


async def call(world: World, plugin: hostcalls.Plugin, do: str = "", **fields: Any) -> Answer:
    asked = msgspec.json.encode({"do": do}).decode()
    return await world.call(world.inode("t", plugin, **fields), asked)


def commands(plugin: hostcalls.Plugin) -> list[str]:
    """Returns the processes that run the plugin's program."""
    word = msgspec.json.decode(plugin.target)["tools"][0]["argv"][0].encode()
    found = []
    for pid in map(str, limits.pids()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [pid] if word in words else []
    return found


async def test_memory_ends_the_program_and_nothing_else(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        world.pool._limits = hostcalls.HostLimits(256 << 20, 40, 256)
        await call(world, plugin)
        (host,) = world.pool.by_pid
        answer = await call(world, plugin, "bytearray(10 << 30)")
        assert answer.status in (1, 70), answer
        assert (await call(world, plugin)).output.isdecimal()
        assert list(world.pool.by_pid) == [host]


async def test_a_fork_bomb_ends_with_its_call(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    if os.geteuid() == 0 and not any(os.access(place, os.W_OK) for _, place in limits.hierarchies()):
        pytest.skip("no cgroups here")  # nothing would limit root's processes
    async with serving(tmp_path) as world:
        world.pool._limits = hostcalls.HostLimits(1 << 30, 40, 256)
        answer = await call(world, plugin, BOMB, timeout=1)
        assert answer.code == "ETIMEDOUT", answer
        await awaited(lambda: not commands(plugin))
        assert (await call(world, plugin)).output.isdecimal()


async def test_a_killed_host_takes_its_program_along(tmp_path: Path, plugin: hostcalls.Plugin) -> None:
    async with serving(tmp_path) as world:
        inode = world.inode("t", plugin)
        async with world.begun(inode, '{"do":"time.sleep(1000)"}') as runner:
            await runner.until(b"start")
            await awaited(lambda: bool(commands(plugin)))
            (host,) = world.pool.by_pid
            os.kill(host, 9)
            answer = await runner.answer()
        assert (answer.code, answer.status) == ("EPROTO", 70)
        await awaited(lambda: not commands(plugin))
        assert (await call(world, plugin)).output.isdecimal()
