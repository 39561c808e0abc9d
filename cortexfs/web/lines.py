"""Connections of the page to the sockets of objects, in its event loop.

    async with opened(place, object) as line:
        await line.say(request)
        async for frames in line.heard(): ...
    await ask(place, object, request)      for a request without an answer of its own

Rules: a slow reader stops only its own connection, as frames are not queued here. A path on the mount is
looked up in a thread, which may wait as long as the mount does.
This file must never know what a page is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial

import trio

from cortexfs.client import places
from cortexfs.client.sorting import new_id
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.protocol import ClientSide
from cortexfs.core.talk.requests import AnyRequest, Ping, encode
from cortexfs.web.children import WebPlace
from cortexfs.web.telling import waited

READ_BYTES = 1 << 18
ANSWER_SECONDS = 10.0


class Line:
    """One connection."""

    def __init__(self, end: trio.SocketStream, name: str) -> None:
        self._end = end
        self._name = name
        self._client = ClientSide()
        self._writing = trio.Lock()

    async def say(self, *requests: AnyRequest) -> None:
        try:
            async with self._writing:
                await self._end.send_all(b"".join(map(encode, requests)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Fault("EHOSTDOWN", f"the connection to {self._name} is lost; see: ctx status") from None

    async def heard(self) -> AsyncIterator[list[AnyFrame]]:
        """Yields the received frames, all that have arrived at a time, until the other side ends."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self._end.receive_some(READ_BYTES):
                if found := self._client.receive(data):
                    yield found


@contextlib.asynccontextmanager
async def opened(place: WebPlace, object_: str) -> AsyncIterator[Line]:
    """Yields a connection to this object. Raises a Fault with the mend if it cannot be reached."""
    try:
        end = await _connected(place, object_)
    except OSError:
        if not await waited(partial(os.path.exists, f"{place.root}/status")):
            raise Fault("EHOSTDOWN", f"no mount is at {place.root}; see: ctx status") from None
        try:
            end = await _connected(place, object_)  # the mount may have come since
        except OSError as problem:
            raise places.refused(object_, problem) from None
    async with end:
        yield Line(end, object_)


async def _connected(place: WebPlace, object_: str) -> trio.SocketStream:
    path = f"{place.root}/{object_}"
    path = await waited(partial(places.socket_path, path), f"{path} does not answer; see: ctx status")
    try:
        with places.address(path) as short, trio.fail_after(ANSWER_SECONDS):
            return await trio.open_unix_socket(short)
    except trio.TooSlowError:
        raise Fault("ETIMEDOUT", f"{object_} does not answer; see: ctx status") from None


async def ask(place: WebPlace, object_: str, request: AnyRequest) -> None:
    """Make a request that has no answer of its own. Raises a Fault if it is refused."""
    ping = Ping(id=new_id())
    async with opened(place, object_) as line:
        await line.say(request, ping)
        with trio.move_on_after(ANSWER_SECONDS):
            async for found in line.heard():
                for frame in found:
                    if isinstance(frame, frames.Error) and frame.request == request.id:
                        raise Fault(frame.code, frame.message)
                    if isinstance(frame, frames.Pong) and frame.request == ping.id:
                        return
    raise Fault("EHOSTDOWN", f"the connection to {object_} is lost; see: ctx status")
