"""The daemon's side of a link that sends wrong messages, as a link reads untrusted input."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from cortexfs.core.hostcalls import Capabilities
from cortexfs.team import remote_objects
from cortexfs.team.messages import ANY, ObjectGone, RemoteObject
from cortexfs.team.places import Member, TeamPlaces
from cortexfs.team.remote_objects import RemoteObjects
from tests.waiting import awaited

PLAIN = RemoteObject("box", "tool", "plain", "", b"{}", Capabilities(), None, False, {})


class Links:
    """Starts links that are only sockets of the test."""

    pid = 0
    ended = False

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.printed = -1
        self.begun = 0

    async def start(self, what: str) -> tuple[Links, list[int]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket, self.begun = ours, self.begun + 1
        said, self.printed = os.pipe()
        return self, [theirs.detach(), said]

    def has_begun(self, times: int) -> bool:
        return self.begun == times

    def kill(self) -> None:
        assert self.socket
        self.socket.close()
        os.close(self.printed)


async def test_what_a_link_says_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_objects, "RETRY_SECONDS", 0)

    async def changed() -> None:
        await trio.lowlevel.checkpoint()

    async def sessions(control: socket.socket) -> None:
        await trio.lowlevel.checkpoint()

    places = TeamPlaces(tmp_path, tmp_path)
    places.write_member(Member("team", "laptop", [], "", "", "", ""))
    links = Links()
    remote = RemoteObjects(cast(Any, links), cast(Any, None), places, changed, sessions)
    text = msgspec.msgpack.encode(PLAIN).replace(b"plain", b"\xff\xfe\xff\xfe\xff")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(remote.run)
        # The name of 62 characters leaves room for a short machine's name, but not for +any.
        said = [ObjectGone(ANY, "tool", "x" * 62), ObjectGone("box", "nothing", "x"), PLAIN]
        for number, garbage in enumerate((text, b"\0", msgspec.msgpack.encode(["object"])), 1):
            await awaited(partial(links.has_begun, number))
            assert links.socket
            for one in said:
                links.socket.send(msgspec.msgpack.encode(one))
            await awaited(lambda: ("tool", "plain+box") in remote.objects)
            links.socket.send(garbage)
        await awaited(partial(links.has_begun, 4))
        nursery.cancel_scope.cancel()
