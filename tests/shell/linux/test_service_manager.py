"""A service manager learns from a daemon that it is ready and works, over a socket of the test."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from cortexfs.linux.service_manager import BEATS, ServiceManager
from tests.waiting import PATIENCE


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(PATIENCE)
        yield made


def test_what_is_told_is_one_datagram_and_no_child_has_the_variables(heard: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": heard.getsockname(), "WATCHDOG_USEC": "3000000", "HOME": "/"}
    with closing(ServiceManager(environ)) as manager:
        manager.tell("READY=1", "STATUS=here")
    assert heard.recv(100) == b"READY=1\nSTATUS=here"
    assert environ == {"HOME": "/"}
    assert manager.pause * BEATS == 3


def test_an_abstract_socket_is_one_too() -> None:
    name = f"cortexfs-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"\0{name}")
        with closing(ServiceManager({"NOTIFY_SOCKET": f"@{name}"})) as manager:
            manager.tell("READY=1")
        made.settimeout(PATIENCE)
        assert made.recv(100) == b"READY=1"


async def test_beats_come_as_long_as_the_loop_turns(heard: socket.socket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": heard.getsockname(), "WATCHDOG_USEC": "3000"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.keep_telling)
        for _ in range(5):
            assert await trio.to_thread.run_sync(heard.recv, 100) == b"WATCHDOG=1"
        nursery.cancel_scope.cancel()
    manager.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "/dev/null", "WATCHDOG_USEC": "1"},
        {"WATCHDOG_USEC": "1000"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
async def test_where_nobody_hears_nothing_is_told(environ: dict[str, str]) -> None:
    manager = ServiceManager(environ)
    manager.tell("READY=1")
    await manager.keep_telling()


def test_the_beats_of_another_process_are_not_ours(heard: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": heard.getsockname(), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    with closing(ServiceManager(environ)) as manager:
        assert not manager.pause


def test_a_manager_that_does_not_read_keeps_nobody_waiting(heard: socket.socket) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": heard.getsockname()})) as manager:
        for _ in range(2000):  # more messages than the queue of a datagram socket holds
            manager.tell("STATUS=" + "x" * 200)
    assert heard.recv(1000)
