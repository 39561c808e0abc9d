"""One HTTP request on behalf of code that is not trusted: http and https, public addresses, bounded.

Main path: `fetch` makes the request in a thread of its own and waits no longer than it may. Nothing else ends
a slow name server, or one that sends a byte each second.

Rules: an address is judged after the name was resolved, and the connection goes to that very address, so a
name that changes its mind gains nothing. A redirect is a request of its own and judged like the first. What
was refused and what has failed is an answer, never an exception: the sentence in its body says which.
This file must never know who asks.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from cortexfs.core import networks

SECONDS = 30.0
MAX_BODY = 65528
MAX_REQUEST = 1 << 20
MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# What frames the request: two readers of it must not see two requests.
_OURS = ("connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade")
_SECRETS = ("authorization", "cookie", "proxy-authorization")
_PORTS = {"http": 80, "https": 443}


class HttpRequest(NamedTuple):
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    reached: bool = True  # whether it is a server's


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        self.answer = HttpAnswer(status, f"host: {why}".encode(), False)


def fetch(
    request: HttpRequest,
    private: tuple[str, ...],
    wake: queue.SimpleQueue[HttpAnswer | None],
    *,
    most: int = MAX_BODY,
    redirects: int = MAX_REDIRECTS,
) -> HttpAnswer | None:
    """The answer; None where `wake`, of this request alone, was told that nobody wants it any more."""
    exchange = _Exchange(request, private, time.monotonic() + SECONDS, most, redirects)
    threading.Thread(target=lambda: wake.put(exchange.answer()), daemon=True).start()
    try:
        return wake.get(timeout=SECONDS)
    except queue.Empty:
        return HttpAnswer(408, b"host: request timeout or failed", False)
    finally:
        exchange.leave()


class _Exchange:
    def __init__(
        self, request: HttpRequest, private: tuple[str, ...], until: float, most: int, redirects: int
    ) -> None:
        self._request = request
        self._most = most
        self._redirects = redirects
        self._private = networks.granted(private)
        self._until = until
        self._sockets: list[socket.socket] = []
        self._left = False

    def leave(self) -> None:
        """Make the thread end that is still at it."""
        self._left = True
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def answer(self) -> HttpAnswer:
        try:
            return self._followed()
        except _Refused as refused:
            return refused.answer
        except TimeoutError:
            return HttpAnswer(408, b"host: request timeout or failed", False)
        except (ValueError, http.client.InvalidURL):  # of what cannot stand in a request
            return HttpAnswer(400, b"host: the request cannot be written as HTTP", False)
        except (OSError, http.client.HTTPException):
            return HttpAnswer(500, b"host: request timeout or failed", False)
        except Exception:  # the thread has nobody above it, and its guest waits for a status
            return HttpAnswer(500, b"host: unexpected error in http_request", False)

    def _followed(self) -> HttpAnswer:
        request = self._request
        for _ in range(self._redirects + 1):
            answer, target = self._once(request)
            if target is None:
                return answer
            request = _redirected(request, answer.status, urljoin(request.url, target))
        raise _Refused(500, f"more than {self._redirects} redirects")

    def _once(self, request: HttpRequest) -> tuple[HttpAnswer, str | None]:
        scheme, host, port, path = _parts(request.url)
        connection = http.client.HTTPConnection(host, port)
        connection.sock = self._connected(scheme, host, port)
        try:
            connection.request(request.method, path, request.body or None, dict(request.headers))
            response = connection.getresponse()
            target = response.getheader("location") if response.status in _REDIRECTS else None
            body = response.read(self._most)
            if response.length and len(body) < self._most:  # which `read` with a number says nothing of
                raise http.client.IncompleteRead(body, response.length)
            return HttpAnswer(response.status, body), target
        finally:
            connection.close()

    def _connected(self, scheme: str, host: str, port: int) -> socket.socket:
        fault: OSError = OSError("no address")
        for family, address in self._allowed(host, port):
            made = socket.socket(family, socket.SOCK_STREAM)
            self._sockets.append(made)
            try:
                made.settimeout(max(0.01, self._until - time.monotonic()))
                if self._left:
                    raise TimeoutError
                made.connect(address)
                return _secured(made, host) if scheme == "https" else made
            except OSError as error:
                made.close()
                fault = error
        raise fault

    def _allowed(self, host: str, port: int) -> Iterator[tuple[int, Any]]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        allowed = [(each[0], each[4]) for each in found if networks.may_reach(str(each[4][0]), self._private)]
        if not allowed:
            raise _Refused(403, f"{host[:200]} is a private address, which the plugin is not granted")
        yield from allowed


def _parts(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise _Refused(400, "only http and https can be requested")
    if not parts.hostname:
        raise _Refused(400, "the URL names no host")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], path


def _secured(plain: socket.socket, host: str) -> socket.socket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _redirected(request: HttpRequest, status: int, url: str) -> HttpRequest:
    """The request that follows: as a GET where browsers do so, and without secrets for another server."""
    before, after = urlsplit(request.url), urlsplit(url)
    headers = dict(request.headers)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        headers = {name: value for name, value in headers.items() if name.lower() not in _SECRETS}
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        return HttpRequest("GET", url, headers, b"")
    return HttpRequest(request.method, url, headers, request.body)


def headers_of(value: object) -> dict[str, str] | None:
    """Returns the headers that a request may have; None if the value is no object of strings."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        return None
    return {str(name): text for name, text in value.items() if str(name).lower() not in _OURS}
