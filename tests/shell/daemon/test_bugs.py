"""A bug in a connection, a conversation or a driver ends that alone, and `status` counts it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from cortexfs.config import load
from cortexfs.daemon import status
from cortexfs.daemon.daemon import Daemon
from cortexfs.models.ask.driver import Turn
from cortexfs.models.drivers import answered
from cortexfs.peers.streams import receive
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin
from cortexfs.state.directories import Places
from tests.bugcount import counted
from tests.shell import calling
from tests.shell.talk.test_sockets import TALKS, listening


async def bug(*_: Any) -> None:
    raise ZeroDivisionError


async def test_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # run/listener.py: "a bug ends its own connection and no other"
    async with calling.serving(tmp_path) as world:
        with counted() as bugs, monkeypatch.context() as patched:
            patched.setattr(world.exec, "_strict", False)
            patched.setattr(world.exec, "_run", bug)
            assert (await world.call(world.inode("pid"), "{}")).status is None
        assert bugs.met == 1
        assert await world.pid()


async def test_of_a_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # talk/listener.py: "a bug ends only this connection"
    async with listening(tmp_path) as sockets:
        monkeypatch.setattr(sockets, "_strict", False)
        monkeypatch.setattr(sockets, "_converse", bug)
        await sockets.reconcile([TALKS])
        with counted() as bugs, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "model/acme/talker.sock"))
            client.setblocking(False)
            assert await receive(client) == b""
        assert bugs.met == 1


async def test_of_a_task_that_answers() -> None:
    # models/drivers.py: "a driver's bug ends its own run and no other"
    with counted() as bugs:
        fault = await answered(bug, cast(Turn, None))
    assert fault
    assert fault.code == "EPROTO"
    assert bugs.met == 1


def test_status_tells_of_all(tmp_path: Path) -> None:
    # docs/ctx.md: "how many bugs of ours were met"
    log = logging.getLogger("cortexfs")
    config = load(Places(tmp_path / "state", tmp_path / "config"))
    daemon = Daemon(tmp_path, config, Starter(begin()), lambda: None)
    try:
        for name in ("cortexfs", "cortexfs.tree.fuse"):
            logging.getLogger(name).error("a guard has met one", exc_info=ZeroDivisionError())
        log.error("a fault is no bug")
        assert "\nbugs met: 2\n" in status.text(daemon)
    finally:
        log.removeHandler(daemon.bugs)
        daemon.pool.stop()
