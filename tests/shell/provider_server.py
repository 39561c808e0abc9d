"""A provider that tests play: an HTTP server on a local port that answers as the test says, faults included.

    async with playing(answers) as provider: ...     answers: a list of moves per request; the last repeats

A move is bytes to send, `Wait` (for the test's event), `Pause` or `Cut`. Requests are kept as received.
"""

from __future__ import annotations

import contextlib
import functools
import json
import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import h11
import trio

KEY = "sk-test-Q7vTm2xKp9LzRw4NcJd8YbHf3GsUe6"  # no other text contains this key, nor half of it


class Cut(NamedTuple):
    """Ends the connection: by a reset, or by a normal close."""

    reset: bool = False


class Wait(NamedTuple):
    """Sends nothing until the test sets the event or the client leaves."""

    event: trio.Event


class Pause(NamedTuple):
    """Sends nothing for so many seconds."""

    seconds: float


Move: TypeAlias = bytes | Cut | Wait | Pause
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def status(number: int, body: bytes | dict[str, Any] = b"{}", **headers: str) -> list[Move]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {number} X", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ["\r\n".join([*lines, "", ""]).encode() + data]


def chunks(*data: dict[str, Any] | str) -> list[bytes]:
    """Returns the events of a chat completion."""
    return [
        b"data: " + (each if isinstance(each, str) else json.dumps(each)).encode() + b"\n\n" for each in data
    ]


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def ended(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


USED = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def chat(*words: str) -> list[Move]:
    """Returns a whole answer in the format openai.chat."""
    return [SSE, *chunks(*map(said, words), ended(), USED, "[DONE]")]


def responses(*words: str) -> list[Move]:
    rows: list[dict[str, Any]] = [{"type": "response.created", "response": {}}]
    rows += [{"type": "response.output_text.delta", "delta": word} for word in words]
    used = {"usage": {"input_tokens": 5, "output_tokens": 2}}
    rows.append({"type": "response.completed", "response": used})
    return [SSE, *chunks(*(row | {"sequence_number": n} for n, row in enumerate(rows)))]


def messages(*words: str) -> list[Move]:
    rows: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
            for word in words
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return [SSE, *(f"event: {row['type']}\n".encode() + chunks(row)[0] for row in rows)]


WHOLE = {"openai.chat": chat, "google": chat, "openai.responses": responses, "anthropic.messages": messages}


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Provider:
    def __init__(self, answers: Sequence[Sequence[Move]]) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.port = self.connections = 0
        self.left = trio.Event()  # set when a client leaves during its answer
        self.asked = trio.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
                while request := await _heard(stream):
                    self.requests.append(request)
                    self.asked.set()
                    if not await self._play(stream, await self.moves(request)):
                        return

    async def moves(self, request: Request) -> Sequence[Move]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def _play(self, stream: trio.SocketStream, moves: Iterable[Move]) -> bool:
        """Send the moves. Returns True if the connection may be used again."""
        keep = True
        for move in moves:
            if isinstance(move, bytes):
                keep = keep and b"Connection: close" not in move
                try:
                    await stream.send_all(move)
                except trio.BrokenResourceError:
                    self.left.set()
                    return False
            elif isinstance(move, Wait):
                await self._wait(stream, move)
            elif isinstance(move, Pause):
                await trio.sleep(move.seconds)
            else:
                if move.reset:
                    stream.socket.setsockopt(
                        trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                return False
        return keep

    async def _wait(self, stream: trio.SocketStream, move: Wait) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._gone, stream, nursery)
            await move.event.wait()
            nursery.cancel_scope.cancel()

    async def _gone(self, stream: trio.SocketStream, nursery: trio.Nursery) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            assert not await stream.receive_some(1)
        self.left.set()
        nursery.cancel_scope.cancel()


async def _heard(stream: trio.SocketStream) -> Request | None:
    parser = h11.Connection(h11.SERVER)
    head: h11.Request | None = None
    body = b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = await stream.receive_some(1 << 16)
            if not data and head is None:
                return None
            parser.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            value = json.loads(body) if body else None
            return Request(head.method.decode(), head.target.decode(), headers, value)


@contextlib.asynccontextmanager
async def playing(*answers: Sequence[Move]) -> AsyncIterator[Provider]:
    async with served(Provider(answers)) as provider:
        yield provider


AnyProvider = TypeVar("AnyProvider", bound=Provider)


@contextlib.asynccontextmanager
async def served(provider: AnyProvider) -> AsyncIterator[AnyProvider]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            functools.partial(trio.serve_tcp, provider.serve, 0, host="127.0.0.1")
        )
        provider.port = listeners[0].socket.getsockname()[1]
        yield provider
        nursery.cancel_scope.cancel()
