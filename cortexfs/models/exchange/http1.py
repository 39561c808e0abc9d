"""A connection that speaks HTTP/1.1, over Trio and h11: to a provider, or to an engine on this machine.

    with closing(await connected(address, seconds)) as connection:
        await connection.begin("POST", target, headers, body)
        while data := await connection.receive(): ...

Rules: an answer is read piece by piece, and only `body` waits for the whole, up to a bound. To leave closes
the connection, and the server sees that no client waits any more. No request is retried or redirected, and a
failure is a Lost.
This file must never know the content of a request.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple
from urllib.parse import SplitResult

import h11
import trio

from cortexfs.core import networks
from cortexfs.models.exchange.endpoint import Lost
from cortexfs.net import proxies, web

CHUNK = 64 << 10
ENDED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)  # states of a server that has answered
BROKE_OFF = "the connection broke off"
_PORTS = {"http": 80, "https": 443}


class ServerAddress(NamedTuple):
    """The address of a server, by which idle connections are kept."""

    scheme: str
    host: str
    port: int
    proxy: SplitResult | None

    @classmethod
    def of(cls, parts: SplitResult) -> ServerAddress:
        """Returns the address in a URL. Raises Lost if there is none."""
        try:
            port = parts.port or _PORTS[parts.scheme]
            return cls(parts.scheme, parts.hostname or "", port, proxies.proxy_of(parts))
        except (KeyError, ValueError):
            raise Lost("its base_url is not one of http or https", connected=False, lasting=True) from None
        except OSError as problem:
            raise Lost(str(problem), connected=False) from None


class HttpConnection:
    """A connection that carries one exchange at a time."""

    def __init__(
        self, stream: trio.abc.Stream, plain: trio.SocketStream, prefix: str, own: dict[str, str]
    ) -> None:
        """For a proxy, `prefix` leads the target of each request, and `own` is added to its headers."""
        self._stream = stream
        self._plain = plain
        self._socket: socket.socket = plain.socket._sock  # type: ignore[attr-defined]
        self._prefix = prefix
        self._own = own
        self._http = h11.Connection(h11.CLIENT)
        self._ended = self._has_served = False
        self.before_wait: Callable[[], None] | None = None  # called before each wait for more of an answer
        self.status = 0
        self.headers: dict[str, str] = {}

    def close(self) -> None:
        self._plain.socket.close()

    async def begin(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send the request, and return when the answer has begun."""
        try:
            request = h11.Request(
                method=method, target=self._prefix + target, headers=[*(headers | self._own).items()]
            )
            events = (request, h11.Data(data=body), h11.EndOfMessage())
            data = b"".join(self._http.send(event) or b"" for event in events)
        except h11.LocalProtocolError:
            raise Lost("the request cannot be written as HTTP", connected=False, lasting=True) from None
        with suppress(trio.BrokenResourceError):  # a server may answer before it has read the whole request
            await self._stream.send_all(data)
        response = await self._next(connected=False)
        if not isinstance(response, h11.Response):
            raise Lost(BROKE_OFF, connected=False)
        self.status = response.status_code
        self.headers = {name.decode(): value.decode("latin-1") for name, value in response.headers}

    async def receive(self) -> bytes:
        """Returns all bytes of the answer that have arrived since the last call; none at its end."""
        if self._http.their_state in ENDED:
            return b""
        event = await self._next(connected=True)
        data = bytearray()
        # A server makes a chunk of each event, and several may have arrived.
        while isinstance(event, h11.Data):
            data += event.data
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                break  # `_next` raises it at the next call
        return bytes(data)

    async def body(self, most: int, seconds: float) -> bytes:
        """Returns the part of the answer that arrives within `seconds`, up to `most` bytes."""
        body = b""
        with trio.move_on_after(seconds), suppress(Lost):
            while len(body) < most and (data := await self.receive()):
                body += data
        return body[:most]

    async def _next(self, connected: bool) -> object:
        try:
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA and not isinstance(event, h11.InformationalResponse):
                    return event
                data = await self._more()
                self._ended = not data
                self._http.receive_data(data)
        except h11.RemoteProtocolError:
            if self._ended:
                raise Lost(BROKE_OFF, connected) from None
            # On a connection that has served before, it may be the unread rest of an answer.
            raise Lost("it does not speak HTTP", connected, lasting=not self._has_served) from None
        except trio.BrokenResourceError:
            raise Lost(BROKE_OFF, connected) from None

    async def _more(self) -> bytes:
        """Returns the next bytes. If they have arrived, this takes no turn of the loop: readers must rest."""
        if self._stream is not self._plain:
            self._note_wait()
            return bytes(await self._stream.receive_some(CHUNK))
        while True:
            try:
                return self._socket.recv(CHUNK)
            except BlockingIOError:
                self._note_wait()
                await trio.lowlevel.wait_readable(self._socket)
            except OSError:
                raise trio.BrokenResourceError from None

    def _note_wait(self) -> None:
        if self.before_wait is not None:
            self.before_wait()

    def is_over(self) -> bool:
        """Returns True if another request may follow, after a call of `again`."""
        if self._http.their_state is h11.SEND_BODY:
            with suppress(h11.RemoteProtocolError):
                self._http.next_event()  # the end of the answer has arrived, and is not read yet
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def again(self) -> bool:
        """Prepare for another request. Returns False if the server left, or has sent unrequested bytes."""
        poll = select.poll()
        poll.register(self._plain.socket.fileno(), select.POLLIN)
        if poll.poll(0) or self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        self._has_served, self.before_wait = True, None
        return True


async def connected(to: ServerAddress, seconds: float) -> HttpConnection:
    """Connect within `seconds`. Raises Lost."""
    with trio.move_on_after(seconds):
        plain: trio.SocketStream | None = None
        try:
            plain = await _plain(*(proxies.address(to.proxy) if to.proxy else (to.host, to.port)))
            return await _over(plain, to)
        except BaseException as problem:
            if plain is not None:
                plain.socket.close()
            if not isinstance(problem, OSError | trio.BrokenResourceError):
                raise
            raise _unreached(problem) from None
    raise Lost("it did not answer in time", connected=False)


async def _over(plain: trio.SocketStream, to: ServerAddress) -> HttpConnection:
    if to.scheme == "http":
        prefix = f"http://{to.host}:{to.port}" if to.proxy else ""
        return HttpConnection(plain, plain, prefix, proxies.authorization(to.proxy) if to.proxy else {})
    if to.proxy:
        await plain.send_all(proxies.tunnel(to.proxy, to.host, to.port))
        answer = b""
        while (through := proxies.is_through(answer)) is None and (data := await plain.receive_some(1 << 10)):
            answer += data
        if not through:
            raise OSError(proxies.REFUSAL)
    # A server may leave without the end of TLS: h11 knows if the answer was complete. A thread makes the
    # context, as that reads some hundred certificates.
    stream = trio.SSLStream(
        plain, await trio.to_thread.run_sync(_context), server_hostname=to.host, https_compatible=True
    )
    await stream.do_handshake()
    return HttpConnection(stream, plain, "", {})


async def _plain(host: str, port: int) -> trio.SocketStream:
    if not networks.is_address(host):
        return await trio.open_tcp_stream(host, port)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    connection = trio.socket.from_stdlib_socket(sock)
    try:
        await _reach(sock, (host, port))
        return trio.SocketStream(connection)
    except BaseException:
        connection.close()
        raise


async def _reach(sock: socket.socket, address: tuple[str, int]) -> None:
    """Connect as Trio does, but without a turn of the loop if possible. On the loopback a connection is
    nearly always ready at once, and the second call reports that."""
    while (problem := sock.connect_ex(address)) not in (0, errno.EISCONN):
        if problem == errno.EALREADY:
            await trio.lowlevel.wait_writable(sock)
        elif problem != errno.EINPROGRESS:
            raise OSError(problem, os.strerror(problem))


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _unreached(problem: BaseException) -> Lost:
    """Returns the Lost for a failure. No variable of `connected` may hold the failure, which holds the frame.
    Both, and since Python 3.12 all frames that await it, would stay until garbage is collected."""
    root = _root(problem)
    return Lost(web.why_not(root), connected=False, lasting=isinstance(root, ssl.SSLError))


def _root(problem: BaseException) -> BaseException:
    """Returns the failure that caused Trio's."""
    while True:
        if isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        elif problem.__cause__ is None:
            return problem
        else:
            problem = problem.__cause__
