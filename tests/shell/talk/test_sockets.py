"""The objects that have a listener, on plain folders; on a mount the names are made differently."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import trio

from cortexfs.core.registry import Object
from cortexfs.core.wire import BIND_NAME
from cortexfs.peers.guests import Arrivals
from cortexfs.pool.pool import Pool
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin
from cortexfs.talk.conversations import Conversations
from cortexfs.talk.listener import Sockets
from cortexfs.tree.socket_binding import Bindings

ALLOWED = int(Path("/proc/sys/net/core/somaxconn").read_text())
TALKS = Object(class_="model", name="acme/talker", description="Talks.", extra={"session": "socket"})
BROKEN = msgspec.structs.replace(TALKS, status="broken: its key is missing")
KEYLESS = msgspec.structs.replace(TALKS, status="no key: ctx provider secret set acme")
SILENT = Object(class_="model", name="acme/silent", description="Does not.")
TOOL = Object(class_="tool", name="fs.read", description="Reads.")


@contextlib.asynccontextmanager
async def listening(root: Path) -> AsyncIterator[Sockets]:
    (root / "model" / "acme").mkdir(parents=True)
    (root / BIND_NAME).parent.mkdir()
    starter = Starter(begin(root))
    starter.mounted(os.stat(root).st_dev)
    pool = cast(Pool, SimpleNamespace(by_pid={}, starter=starter))

    @contextlib.contextmanager
    def expecting(object_: Object | None, thread: int) -> Iterator[None]:
        assert object_
        assert thread == starter.pid
        yield
        (root / BIND_NAME).replace(root / f"{object_.class_}/{object_.name}.sock")

    bindings = cast(Bindings, SimpleNamespace(expecting=expecting))
    arrivals = Arrivals()
    sockets = Sockets(bindings, cast(Conversations, None), pool, 8, arrivals, strict=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(starter.run)
            nursery.start_soon(arrivals.run)
            await nursery.start(sockets.run)
            yield sockets
            nursery.cancel_scope.cancel()
    finally:
        starter.stop()


def connect(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(root / "model/acme/talker.sock"))


async def test_one_that_breaks_refuses_and_keeps_its_name(tmp_path: Path) -> None:
    # abi.md 5.6
    async with listening(tmp_path) as sockets:
        await sockets.reconcile([TALKS])
        connect(tmp_path)
        await sockets.reconcile([BROKEN])
        assert (tmp_path / "model/acme/talker.sock").is_socket()
        with pytest.raises(ConnectionRefusedError):
            connect(tmp_path)
        await sockets.reconcile([TALKS])  # the object is usable again
        connect(tmp_path)
        sockets.close()
        with pytest.raises(ConnectionRefusedError):
            connect(tmp_path)


async def test_one_that_breaks_in_the_moment_of_a_connection_ends_itself_alone(tmp_path: Path) -> None:
    # Its listener must not be closed while a task is about to wait for it.
    async with listening(tmp_path) as sockets:
        for _ in range(20):
            await sockets.reconcile([TALKS])
            connect(tmp_path)
            await trio.lowlevel.checkpoint()
            await sockets.reconcile([BROKEN])


async def test_one_that_lacks_a_key_only_can_be_talked_to(tmp_path: Path) -> None:
    # The object answers EACCES with advice, where a refused connection would explain nothing.
    async with listening(tmp_path) as sockets:
        await sockets.reconcile([KEYLESS])
        connect(tmp_path)


async def test_one_without_sessions_has_no_socket(tmp_path: Path) -> None:
    # abi.md 5.5
    async with listening(tmp_path) as sockets:
        await sockets.reconcile([SILENT, TOOL, TALKS])
        await sockets.reconcile([SILENT, TOOL, TALKS])  # a running listener is left alone
        assert os.listdir(tmp_path / "model" / "acme") == ["talker.sock"]
        connect(tmp_path)


async def test_as_many_may_wait_for_it_as_the_kernel_allows(tmp_path: Path) -> None:
    # issue 13.10: 512 did
    most = min(4096, ALLOWED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    name = str(tmp_path / "model/acme/talker.sock")
    async with listening(tmp_path) as sockets:
        await sockets.reconcile([TALKS])
        with contextlib.ExitStack() as waiting:
            for _ in range(most):  # no task of ours runs meanwhile, so no connection is accepted
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(name)
        sockets.close()
