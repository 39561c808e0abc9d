"""A stream of events whose source fails: the page gets the failure as an event."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import memory_stream_pair

from cortexfs.core.errors import Fault
from cortexfs.web.gate import LOOPBACK, Gate
from cortexfs.web.http import Emit, Events, Listener, PageRequest

REQUEST = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def heard(failure: Exception) -> list[Any]:
    """Returns the events of a stream that fails after its first one."""

    async def events(emit: Emit) -> None:
        await emit(b'data: {"type":"follows"}\n\n')
        raise failure

    async def answer(_: PageRequest) -> Events:
        return events

    ours, theirs = memory_stream_pair()
    data = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Listener(Gate("http", LOOPBACK), answer).serve, theirs)
        await ours.send_all(REQUEST)
        async for piece in ours:
            data += piece
    return [msgspec.json.decode(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]


@pytest.mark.parametrize("failure", [Fault("EIO", "it broke"), ValueError("it broke")])
async def test_the_page_gets_it_as_an_error(failure: Exception) -> None:
    first, last = await heard(failure)
    assert (first["type"], last["type"]) == ("follows", "error")
    assert last["code"] == ("EIO" if isinstance(failure, Fault) else "EPROTO")
    assert "it broke" in last["message"]
