"""The bound on each answer from an MCP server or its authorization server over HTTP, and on the streams that
are opened again, for hosts and commands.

Rules: the SDK bounds the events of a stream, but reads all other answers as a whole. So these are counted as
they arrive. No answer is unpacked, as it could become larger than it came. The SDK opens an ended stream
again after the pause that the server names, which may be none.
This file must never know what is said.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import httpx2

MAX_ANSWER = 32 << 20  # as for a line of a program's
STREAMS, STREAM_SECONDS = 10, 1.0  # so many at once, and then one each second: the SDK's own pause
_STREAM = "text/event-stream"


class OverlongAnswer(httpx2.ReadError):
    """The answer has no end."""


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for data in self._stream:
            size += len(data)
            if size > MAX_ANSWER:
                raise OverlongAnswer(f"it sent an answer of over {MAX_ANSWER >> 20} MiB")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


class StreamTurns:
    """Delays the requests of one client that open a stream."""

    def __init__(self) -> None:
        self._earned = 0.0  # the time at which all streams so far would have had their second

    async def wait(self, request: httpx2.Request) -> None:
        if request.method == "GET" and _STREAM in request.headers.get("accept", ""):
            now = time.monotonic()
            self._earned = max(self._earned, now) + STREAM_SECONDS
            await anyio.sleep(max(self._earned - now - STREAMS * STREAM_SECONDS, 0))


def bound(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Returns the client, which from now on reads bounded answers, and spaces out streams. Its proxies stay
    as they are."""
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], StreamTurns().wait, ask_plain],
        "response": [*hooks["response"], count],
    }
    return client


async def ask_plain(request: httpx2.Request) -> None:
    request.headers["Accept-Encoding"] = "identity"


async def count(response: httpx2.Response) -> None:
    """Count the answer as it is read, unless it is a stream of events."""
    response.headers.pop("Content-Encoding", None)
    if response.headers.get("content-type", "").partition(";")[0].strip() != _STREAM:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream)
