"""The end of a library's state: dropped once when its host has to leave, and not waited for long."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.pool import pool
from cortexfs.pool.host import Host
from tests.shell import declaring
from tests.shell.calling import World, serving
from tests.shell.declaring import build
from tests.shell.forks import public_directory


@pytest.fixture
def public() -> Iterator[Path]:
    with public_directory() as place:
        yield place


def made(public: Path, *flags: str, name: str = "fixture") -> hostcalls.Plugin:
    return declaring.library(
        build(public, declaring.NATIVE / "fixture.c", *flags, name=f"{name}.so"), name=name
    )


def telling(public: Path, name: str = "fixture") -> tuple[hostcalls.Plugin, Path]:
    """Returns a library that writes a file when it is dropped, and the path of that file."""
    said = public / f"{name}.dropped"
    return made(public, f'-DDROPPED="{said}"', name=name), said


async def host(world: World, plugin: hostcalls.Plugin) -> Host:
    answer = await world.call(world.inode("where", plugin), "{}")
    return world.pool.by_pid[int(answer.output.split()[0])]


async def test_each_state_is_dropped_once_when_the_daemon_ends(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue 5: "one state per library and caller identity, kept for the daemon's life, drop once at shutdown"
    monkeypatch.setattr(pool, "LEAVE_SECONDS", 30.0)  # the time limit is not tested here
    first, one = telling(public, "first")
    second, two = telling(public, "second")
    async with serving(tmp_path) as world:
        for plugin in (first, second, first):
            await host(world, plugin)
        assert not one.exists()
        assert not two.exists()
    assert (one.read_text(), two.read_text()) == ("dropped\n", "dropped\n")


async def test_a_replaced_library_is_dropped_once(tmp_path: Path, public: Path) -> None:
    # abi.md 11.16
    plugin, said = telling(public)
    async with serving(tmp_path) as world:
        left = await host(world, plugin)
        world.pool.replace(lambda plugin: False)
        await left.exited.wait()
        assert left.status == 0
    assert said.read_text() == "dropped\n"


async def test_a_library_that_was_replaced_under_a_call_is_dropped_after_it(
    tmp_path: Path, public: Path
) -> None:
    plugin, said = telling(public)
    async with serving(tmp_path) as world:
        left = await host(world, plugin)
        assert await world.pool.acquire(plugin, left.identity) is left  # acquired as for a call
        world.pool.replace(lambda plugin: False)
        assert left.is_alive
        assert not said.exists()
        world.pool.release(left)
        await left.exited.wait()
        assert left.status == 0
    assert said.read_text() == "dropped\n"


async def test_a_library_that_hangs_when_it_is_dropped(tmp_path: Path, public: Path) -> None:
    plugin = made(public, "-DHANG_IN_DROP")
    async with serving(tmp_path) as world:
        left = await host(world, plugin)
        world.pool.replace(lambda plugin: False)
        await left.exited.wait()
        assert left.status == 0


async def test_a_host_that_does_not_go_does_not_hold_up_the_end(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LEAVE_SECONDS", 0.05)
    async with serving(tmp_path) as world:
        stopped = await host(world, made(public))
        os.kill(stopped.pid, signal.SIGSTOP)
    assert not _is_there(stopped.pid)


def _is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
