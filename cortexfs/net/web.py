"""One HTTP request, bounded in time and size, for hosts and for commands.

    answer = web.get(url, headers, Bounds(most, seconds))       for an address that a person named
    answer = web.fetch(request, bounds, wake)                   for an address from untrusted code
    with web.begun(request, seconds, leaving) as response:  read as it arrives

Main path: `fetch` makes the request in a thread of its own and waits for `Bounds.seconds` at most. Nothing
else would bound a slow name server, or a server that sends a byte each second.

Rules: with `Bounds.private`, the resolved address is judged, and the connection goes to that very address: a
name that resolves to another address later gains nothing, and proxies of the environment are not used. A
redirect is judged like the first request, and carries no secrets to another server. A refusal is a Fault, a
failure an exception of Python's; any status is an answer.
This file must never know the callers.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

from cortexfs.core import networks
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped, shown
from cortexfs.net import proxies
from cortexfs.version import VERSION

IDLE_SECONDS = 30.0  # to connect, and between two pieces of an answer
MAX_REDIRECTS = 5
MAX_URL = 300  # characters of an address that an error quotes
AGENT = {"User-Agent": f"cortexfs/{VERSION}"}
_REDIRECTS = (301, 302, 303, 307, 308)
_SECRETS = ("authorization", "cookie", "proxy-authorization")
PLAIN_TOO = ("http", "https")
_PORTS = {"http": 80, "https": 443}


class WebRequest(NamedTuple):
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


class Bounds(NamedTuple):
    most: int  # bytes of the answer's body; the rest is cut
    seconds: float
    redirects: int = MAX_REDIRECTS  # 0: a redirect is the answer
    schemes: tuple[str, ...] = PLAIN_TOO
    private: Sequence[str] | None = None  # the private networks that may be reached; None: all


class WebAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


Wake: TypeAlias = "queue.SimpleQueue[WebAnswer | Exception | None]"

# What `fetch` and `get` raise, beside Faults.
FAILURES = (OSError, ValueError, http.client.HTTPException)


class Private(Fault):
    """A name without an address that may be reached."""

    def __init__(self, host: str, address: str) -> None:
        mend = "name its network with --private if you trust it"
        which = "a private address" if address in host else f"the private address {address}"
        message = f"{shown(clipped(host, 200))} has {which}, which is not allowed; {mend}"
        super().__init__("EACCES", message)
        self.host = host


def fetch(request: WebRequest, bounds: Bounds, wake: Wake) -> WebAnswer | None:
    """Return the answer; None if the caller has put None into `wake`, as nobody waits any more."""
    exchange = _Exchange(request, bounds)
    threading.Thread(target=lambda: wake.put(exchange.answer()), daemon=True).start()
    try:
        answer = wake.get(timeout=bounds.seconds)
    except queue.Empty:
        raise TimeoutError(f"no whole answer within {bounds.seconds:g} s") from None
    finally:
        exchange.leave()
    if isinstance(answer, Exception):
        raise answer
    return answer


def get(url: str, headers: Mapping[str, str], bounds: Bounds) -> WebAnswer:
    answer = fetch(WebRequest("GET", url, {"Accept": "*/*", **AGENT, **headers}), bounds, queue.SimpleQueue())
    assert answer is not None  # nobody else has the queue
    return answer


@contextmanager
def begun(
    request: WebRequest, seconds: float, leaving: Callable[[Callable[[], object]], object]
) -> Iterator[http.client.HTTPResponse]:
    """Yields an answer that may last for ever; `seconds` limits the connecting alone. `leaving` gets the
    function that ends the request."""
    exchange = _Exchange(request, Bounds(0, seconds))
    leaving(exchange.leave)
    connection = exchange.begin(request)
    try:
        for each in exchange.sockets:
            each.settimeout(None)
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def download(url: str, most: int, seconds: float, private: Sequence[str] | None = None) -> bytes:
    """Return the file at an address, or raise ENOENT. `private` is set for an address from untrusted input:
    then only https, public addresses and these networks are allowed."""
    schemes = PLAIN_TOO if private is None else ("https",)
    try:
        answer = get(url, {}, Bounds(most + 1, seconds, schemes=schemes, private=private))
        if answer.status != 200:
            raise Fault("ENOENT" if answer.status in (404, 410) else "EIO", f"HTTP {answer.status}")
        if len(answer.body) > most:
            raise Fault("EMSGSIZE", f"it is over {most >> 20} MiB")
        return answer.body
    except Fault as refused:
        code, why = refused.code, refused.message
    except FAILURES as problem:
        code, why = "ETIMEDOUT" if isinstance(problem, TimeoutError) else "EIO", why_not(problem)
    raise Fault(code, f"{shown(url, MAX_URL)} cannot be fetched: {why}")


def why_not(problem: BaseException) -> str:
    """Returns the reason why there is no answer, without any text of the request."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return "it does not speak https"
    if isinstance(problem, socket.gaierror):
        return "its host name is unknown"
    if isinstance(problem, OSError):
        return problem.strerror.lower() if problem.strerror else str(problem) or "the connection failed"
    if isinstance(problem, http.client.IncompleteRead):
        return "the connection broke off"
    if isinstance(problem, ValueError | http.client.InvalidURL):
        return "the request cannot be written as HTTP"
    return "the server there does not speak HTTP"


class _Exchange:
    def __init__(self, request: WebRequest, bounds: Bounds) -> None:
        self._request = request
        self._bounds = bounds
        self._open = None if bounds.private is None else networks.granted(bounds.private)
        self._until = time.monotonic() + bounds.seconds
        self.sockets: list[socket.socket] = []
        self._is_left = False

    def leave(self) -> None:
        self._is_left = True
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def answer(self) -> WebAnswer | Exception:
        try:
            return self._followed()
        except Exception as problem:  # no one catches it in this thread; `fetch` raises it
            return problem

    def _followed(self) -> WebAnswer:
        request = self._request
        for _ in range(self._bounds.redirects + 1):
            answer, target = self._once(request)
            if target is None or not self._bounds.redirects:
                return answer
            request = redirected(request, answer.status, urljoin(request.url, target))
        raise Fault("ELOOP", f"more than {self._bounds.redirects} redirects")

    def begin(self, request: WebRequest) -> http.client.HTTPConnection:
        """Returns a connection on which the request has been sent."""
        parts = urlsplit(request.url)
        host, headers = self._checked(parts), dict(request.headers)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = None if self._open is not None else proxies.proxy_of(parts)
        if proxy and parts.scheme == "http":
            path = f"http://{parts.netloc.rpartition('@')[2]}{path}"
            headers |= proxies.authorization(proxy)
        connection = http.client.HTTPConnection(host, parts.port or _PORTS[parts.scheme])
        connection.sock = self._way(parts.scheme, host, connection.port, proxy)
        try:
            connection.request(request.method, path, request.body or None, headers)
        except BaseException:
            connection.close()
            raise
        return connection

    def _once(self, request: WebRequest) -> tuple[WebAnswer, str | None]:
        connection = self.begin(request)
        try:
            with connection.getresponse() as response:
                body = response.read(self._bounds.most)
                # `read` with a number does not report a short body.
                if response.length and len(body) < self._bounds.most:
                    raise http.client.IncompleteRead(body, response.length)
                target = response.getheader("location") if response.status in _REDIRECTS else None
                return WebAnswer(response.status, dict(response.headers), body), target
        finally:
            connection.close()

    def _checked(self, parts: SplitResult) -> str:
        if parts.scheme not in self._bounds.schemes:
            url = shown(parts.geturl(), MAX_URL)
            schemes = " or ".join(self._bounds.schemes)
            raise Fault("EINVAL", f"{url} is not an {schemes} address, and only those are fetched")
        if not parts.hostname:
            raise Fault("EINVAL", "the URL names no host")
        return parts.hostname

    def _way(self, scheme: str, host: str, port: int, proxy: SplitResult | None) -> socket.socket:
        to = proxies.address(proxy) if proxy else (host, port)
        way = connect(*to, self._open, self._keep)
        try:
            if scheme == "https":
                if proxy:
                    way.sendall(proxies.tunnel(proxy, host, port))
                    head = b""
                    while (through := proxies.is_through(head)) is None and (some := way.recv(1 << 10)):
                        head += some
                    if not through:
                        raise OSError(proxies.REFUSAL)
                way = ssl.create_default_context().wrap_socket(way, server_hostname=host)
                self._keep(way)
            return way
        except BaseException:
            way.close()
            raise

    def _keep(self, stream: socket.socket) -> None:
        self.sockets.append(stream)
        if self._is_left:
            raise TimeoutError
        # A second longer than `fetch` waits, so that `fetch` reports the time limit.
        stream.settimeout(max(0.01, min(IDLE_SECONDS, self._until - time.monotonic() + 1)))


def connect(
    host: str, port: int, granted: Sequence[networks.Network] | None, prepare: Callable[[socket.socket], None]
) -> socket.socket:
    """Connect to an address of the host. `granted` has the reachable private networks; None: all of them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if granted is not None:
        addresses = [str(each[4][0]) for each in found]
        found = [each for each, at in zip(found, addresses, strict=True) if networks.may_reach(at, granted)]
        if not found:
            raise Private(host, addresses[0])
    fault = OSError("it has no address")
    for family, *_, address in found:
        stream = socket.socket(family, socket.SOCK_STREAM)
        try:
            prepare(stream)
            stream.connect(address)
            return stream
        except OSError as problem:
            stream.close()
            fault = problem
    raise fault


def redirected(request: WebRequest, status: int, url: str) -> WebRequest:
    """Returns the request that follows a redirect: a GET where browsers send one, and no secrets for another
    server."""
    before, after = urlsplit(request.url), urlsplit(url)
    headers = dict(request.headers)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        headers = {name: value for name, value in headers.items() if name.lower() not in _SECRETS}
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        return WebRequest("GET", url, headers, b"")
    return WebRequest(request.method, url, headers, request.body)
