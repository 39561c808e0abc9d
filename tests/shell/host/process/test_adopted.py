"""host/serve.py: processes left behind by the commands of built-in tools are reaped."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cortexfs.plugins.catalog import BUILTIN
from tests.shell.calling import serving
from tests.waiting import awaited


async def test_orphans_of_a_command_are_no_zombies(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        shell = world.inode("shell.exec", BUILTIN)
        assert (await world.call(shell, "exit 3")).status == 1
        (pid,) = world.pool.by_pid
        for _ in range(5):
            async with world.begun(shell, "sleep 99 & (setsid sleep 0 &); echo begun; wait") as runner:
                await runner.until(b"begun")
        # No call comes any more, so the host learns of the ends only from the children themselves.
        await awaited(lambda: _children(pid), lambda seen: seen == [])
        assert "exit status 3" in (await world.call(shell, "exit 3")).message


async def test_a_command_leaves_no_process_in_a_session_of_its_own(tmp_path: Path) -> None:
    # abi.md 4.22
    left = "setsid sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &"
    async with serving(tmp_path) as world:
        shell = world.inode("shell.exec", BUILTIN)
        assert (await world.call(shell, f"{left} echo made")).status == 0
        (pid,) = world.pool.by_pid
        await awaited(lambda: _children(pid), lambda seen: seen == [])
        async with world.begun(shell, f"{left} echo begun; sleep 1000") as runner:
            await runner.until(b"begun")
            assert (await world.call(shell, f"{left} echo made")).status == 0  # while the other call goes on
            assert _children(pid)
        await awaited(lambda: _children(pid), lambda seen: seen == [])
        assert (await world.call(shell, "exit 3")).status == 1
        assert [*world.pool.by_pid] == [pid]


def _children(pid: int) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may have ended
            found += (task / "children").read_text().split()
    return found
