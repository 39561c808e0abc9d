"""One file from an https address, for a plugin that is installed: through an outlet, which judges addresses.

Rules: a redirect is a request of its own, and leads to https or nowhere. Time and bytes are bounded whatever
a server does; no variable of the environment leads around the outlet.
This file must never know what the file is for.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Sequence

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped, shown
from cortexfs.host.net.egress_proxy import CONNECT_SECONDS, Outlet

SECONDS = 300.0
MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_ABOVE = 1 << 20  # bytes of TLS and of what stands above a body
_HEADERS = {"User-Agent": "cortexfs", "Accept": "*/*"}


def fetch(address: str, most: int, private: Sequence[str]) -> bytes:
    """Returns the content of an address, at most so many bytes. `private`: networks that may be fetched
    from, too."""
    end = time.monotonic() + SECONDS
    with Outlet(private, most + _ABOVE) as outlet:
        clock = threading.Timer(SECONDS, outlet.close)
        clock.start()
        try:
            return _followed(address, most, outlet)
        except (OSError, ValueError, http.client.HTTPException) as problem:
            why = "; ".join(outlet.refusals) or clipped(str(problem), 200)
            code = "EIO"
            if time.monotonic() > end:
                code, why = "ETIMEDOUT", f"it did not arrive within {SECONDS:g} s"
            raise Fault(code, f"{shown(address)} cannot be fetched: {why}") from None
        finally:
            clock.cancel()


def _followed(address: str, most: int, outlet: Outlet) -> bytes:
    at = address
    for _ in range(MAX_REDIRECTS + 1):
        data, target = _once(at, most, outlet)
        if target is None:
            return data
        at = urllib.parse.urljoin(at, target)
    raise OSError(f"it leads on more than {MAX_REDIRECTS} times")


def _once(address: str, most: int, outlet: Outlet) -> tuple[bytes, str | None]:
    """Returns the content, or the address that it leads to."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" or not parts.hostname:
        raise OSError(f"{shown(address)} is not https, and nothing else is fetched")
    way = http.client.HTTPConnection(parts.hostname, parts.port or 443)
    way.sock = _through(outlet, way.host, way.port)
    try:
        way.request(
            "GET", urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, "")), None, _HEADERS
        )
        answer = way.getresponse()
        if answer.status in _REDIRECTS and (target := answer.getheader("location")):
            return b"", target
        if answer.status != 200:
            raise OSError(f"HTTP {answer.status}")
        data = answer.read(most + 1)
        if len(data) > most:
            raise OSError(f"it is over {most >> 20} MiB")
        if answer.length:
            raise http.client.IncompleteRead(data, answer.length)
        return data, None
    finally:
        way.close()


def _through(outlet: Outlet, host: str, port: int) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", outlet.port), CONNECT_SECONDS)
    try:
        to = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        plain.sendall(f"CONNECT {to} HTTP/1.1\r\n{outlet.authorization}\r\n\r\n".encode())
        said = b""
        while not said.endswith(b"\r\n\r\n"):  # of ours, which says no more before TLS
            some = plain.recv(1 << 10)
            said += some
            if not some:
                break
        if b" 200 " not in said:
            raise OSError("it cannot be reached")
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
