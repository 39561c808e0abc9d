"""The proxies that the environment names, and requests through them.

    if proxy := proxy_of(urlsplit(url)):
        connect to address(proxy); for https, send tunnel(...) and read until is_through(answer)

Rules: a server on this machine is reached without a proxy.
This file must never know how bytes are sent.
"""

from __future__ import annotations

import base64
from urllib.parse import SplitResult, unquote, urlsplit

from cortexfs.core import networks

MAX_HEAD = 16 << 10  # of a proxy's answer
REFUSAL = "its proxy refuses"


def proxy_of(parts: SplitResult) -> SplitResult | None:
    """Returns the address of the proxy for a URL, or None. Raises OSError for a proxy that does not speak
    plain HTTP."""
    if networks.is_loopback(parts.hostname):
        return None
    from urllib.request import getproxies, proxy_bypass  # imported here, as hosts do without

    found = getproxies()
    address = found.get(parts.scheme) or found.get("all")
    if not address or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise OSError(f"its proxy has the scheme {proxy.scheme}, and only http works")
    return proxy


def address(proxy: SplitResult) -> tuple[str, int]:
    return proxy.hostname or "", proxy.port or 80


def authorization(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"}


def tunnel(proxy: SplitResult, host: str, port: int) -> bytes:
    """Returns the request after which a proxy passes all bytes on."""
    name = host.encode("idna").decode()
    to = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    fields = "".join(f"{key}: {value}\r\n" for key, value in ({"Host": to} | authorization(proxy)).items())
    return f"CONNECT {to} HTTP/1.1\r\n{fields}\r\n".encode()


def is_through(head: bytes) -> bool | None:
    """Returns True if the proxy accepts, None while its answer is incomplete. TLS begins right after it."""
    if b"\r\n\r\n" not in head and len(head) <= MAX_HEAD:
        return None
    return head[len("HTTP/1.1 ") :][:3] == b"200"
