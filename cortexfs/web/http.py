"""HTTP/1.1 for one page: requests in, answers and streams of events out.

    async def answer(asked: PageRequest) -> PageAnswer | Events: ...
    await trio.serve_listeners(Listener(gate, answer).serve, listeners)

Main path: `_Guest.go_on` reads one request after the other, lets the gate judge it, and sends the result of
`answer`. A stream of events goes on until its reader leaves or its writer ends.

Rules: strangers can connect. Until a connection shows the token, nothing large is read from it, and waits for
it are short. If there is no room, the oldest connection without a token is closed. A body is always JSON.
This file must never know what a request wants.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import h11
import msgspec
import trio

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.web.gate import HEADERS, Gate, Refusal

MAX_HEAD = 16 << 10
MAX_BODY = 2 << 20  # a message of 1 MiB, with its text as JSON
MAX_STRANGERS_BODY = 1 << 10  # a ticket
MAX_FIELDS = 20
MAX_CONNECTIONS = 200
HEAD_SECONDS = 20.0  # for a request; a connection without one is closed then
KNOWN_SECONDS = 300.0  # the same for a connection that has shown the token
WRITE_SECONDS = 30.0  # for a piece of an answer to be taken
READ_BYTES = 1 << 16
JSON = "application/json"
# The client has left, or does not speak HTTP.
LEFT = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.ProtocolError)
# The statuses of faults; others are 400.
STATUSES = {"ENOENT": 404, "EACCES": 403, "EPERM": 403, "EHOSTDOWN": 503, "ETIMEDOUT": 504, "EPROTO": 500}


class PageRequest(NamedTuple):
    """One request; `fields` is its body, or the query of its address."""

    method: str
    path: str
    fields: Mapping[str, object]
    is_known: bool
    origin: str = ""  # of our page, under the name that the request used

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a field that is a text. Raises EINVAL if it is none or has a NUL, as no argument can."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or "\0" in value:
            raise Fault("EINVAL", f"{name}: expected a text")
        return value


class PageAnswer(NamedTuple):
    body: bytes
    kind: str = JSON
    status: int = 200
    headers: Mapping[str, str] = HEADERS


Emit: TypeAlias = Callable[[bytes], Awaitable[None]]
Events: TypeAlias = Callable[[Emit], Awaitable[None]]
Answering: TypeAlias = Callable[[PageRequest], Awaitable[PageAnswer | Events]]


def answer_of(value: object, status: int = 200) -> PageAnswer:
    return PageAnswer(msgspec.json.encode(value), status=status)


def refused(fault: Fault) -> PageAnswer:
    """Returns the answer to a refused request: the code and sentence of the fault."""
    status = fault.status if isinstance(fault, Refusal) else STATUSES.get(fault.code, 400)
    return answer_of({"code": fault.code, "message": fault.message}, status)


def _bug(bug: Exception) -> Fault:
    if os.environ.get("CTX_DEBUG"):
        raise bug
    return Fault("EPROTO", f"a bug in CortexFS: {type(bug).__name__}: {bug}; CTX_DEBUG=1 shows where")


class Listener:
    """All connections."""

    def __init__(self, gate: Gate, answer: Answering) -> None:
        self.gate = gate
        self.answer = answer
        self._connections = 0
        self._strangers: dict[trio.CancelScope, None] = {}  # those without the token, oldest first

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection. Without room, close the oldest one without the token, or else this one."""
        scope = trio.CancelScope()
        if self._connections >= MAX_CONNECTIONS:
            if not self._strangers:
                return await trio.aclose_forcefully(stream)
            oldest = next(iter(self._strangers))
            self.let_in(oldest)
            oldest.cancel()
        self._connections += 1
        self._strangers[scope] = None
        try:
            with scope:
                await _Guest(stream, self, scope).go_on()
        except* LEFT:
            pass
        finally:
            self._connections -= 1
            self.let_in(scope)
            await trio.aclose_forcefully(stream)

    def let_in(self, scope: trio.CancelScope) -> None:
        """Protect this connection from being closed to make room."""
        self._strangers.pop(scope, None)


class _Guest:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream, listener: Listener, scope: trio.CancelScope) -> None:
        self._stream = stream
        self._listener = listener
        self._scope = scope
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    async def go_on(self) -> None:
        """Answer one request after the other, as long as both sides want to."""
        is_known = False
        while True:
            try:
                with trio.fail_after(KNOWN_SECONDS if is_known else HEAD_SECONDS):
                    request = await self._request()
            except h11.RemoteProtocolError as problem:
                fault = Refusal(problem.error_status_hint, "EINVAL", "the request is not valid HTTP")
                return await self._say(refused(fault), is_last=True)
            except Fault as fault:  # the request's body is not read
                return await self._say(refused(fault), is_last=True)
            if request is None:
                return
            is_known = request.is_known
            await self._reply(request)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _reply(self, request: PageRequest) -> None:
        try:
            answer = await self._listener.answer(request)
        except Fault as fault:
            answer = refused(fault)
        except Exception as bug:  # it ends one request; other tabs go on
            answer = refused(_bug(bug))
        if isinstance(answer, PageAnswer):
            await self._say(answer, request.method == "HEAD")
        else:
            await self._stream_events(answer)

    async def _request(self) -> PageRequest | None:
        event = await self._event()
        if not isinstance(event, h11.Request):
            return None
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        self._listener.gate.judge(headers, event.target.decode("latin-1"))
        if is_known := self._listener.gate.knows(headers):
            self._listener.let_in(self._scope)
        body = await self._body(MAX_BODY if is_known else MAX_STRANGERS_BODY)
        method = event.method.decode("ascii")
        try:
            address = urlsplit(event.target.decode("latin-1"))
            fields: Mapping[str, object] = dict(parse_qsl(address.query, max_num_fields=MAX_FIELDS))
        except ValueError:
            raise Fault("EINVAL", "the request's address is not valid") from None
        if method == "POST":
            fields = _decoded(headers.get("content-type", ""), body)
        return PageRequest(method, address.path, fields, is_known, self._listener.gate.origin(headers))

    async def _body(self, most: int) -> bytes:
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > most:
                why = "which is the limit; make it smaller"
                raise Refusal(413, "EMSGSIZE", f"it is over {most >> 10} KiB, {why}")
        return bytes(body)

    async def _event(self) -> h11.Event | None:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._write(self._http.send(go_on))
            self._http.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
        if isinstance(event, h11.ConnectionClosed):
            return None
        assert not isinstance(event, type)
        return event

    async def _say(self, answer: PageAnswer, is_head: bool = False, is_last: bool = False) -> None:
        sized = (("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))))
        headers = [*answer.headers.items(), *sized]
        if is_last:
            headers.append(("Connection", "close"))
        data = self._http.send(h11.Response(status_code=answer.status, headers=headers))
        if not is_head:
            data += self._http.send(h11.Data(data=answer.body)) or b""
        await self._write(data + (self._http.send(h11.EndOfMessage()) or b""))

    async def _stream_events(self, events: Events) -> None:
        """Pass on what `events` writes, until it ends or its reader has left."""
        headers = [*HEADERS.items(), ("Content-Type", "text/event-stream")]
        await self._write(self._http.send(h11.Response(status_code=200, headers=headers)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_reader, nursery.cancel_scope)
            try:
                await events(self._emit)
            except LEFT:
                raise
            except Exception as problem:
                fault = problem if isinstance(problem, Fault) else _bug(problem)
                said = {"type": "error", "code": fault.code, "message": fault.message}
                await self._emit(b"data: %s\n\n" % msgspec.json.encode(said))
            await self._write(self._http.send(h11.EndOfMessage()))
            nursery.cancel_scope.cancel()

    async def _emit(self, data: bytes) -> None:
        await self._write(self._http.send(h11.Data(data=data)))

    async def _watch_reader(self, scope: trio.CancelScope) -> None:
        """Wait until the reader of a stream leaves. What it still sends is dropped."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self._stream.receive_some(READ_BYTES):
                pass
        scope.cancel()

    async def _write(self, data: bytes | None) -> None:
        if data:
            with trio.fail_after(WRITE_SECONDS):
                await self._stream.send_all(data)


def _decoded(kind: str, body: bytes) -> dict[str, object]:
    """Returns the object in a body. A form of another site is refused, as it cannot have this type."""
    if kind.partition(";")[0].strip().lower() != JSON:
        raise Refusal(415, "EINVAL", f"a request needs the Content-Type {JSON}")
    value = jsontext.decode(body, "the request")
    if not isinstance(value, dict):
        raise Fault("EINVAL", "the request: expected an object")
    return value
