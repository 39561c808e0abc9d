"""The only way out for a program that fetches: the clients it serves, and the addresses it leads to."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from urllib.parse import urlsplit

import pytest

from cortexfs.host.net.egress_proxy import MAX_CONNECTIONS, Outlet

HERE = ("127.0.0.1/32",)


class Far:
    """A server that answers a line with the same line."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.heard: list[bytes] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client:
                while data := client.recv(1 << 16):
                    self.heard.append(data)
                    client.sendall(data)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def far() -> Iterator[Far]:
    with closing(Far()) as made:
        yield made


def said(outlet: Outlet, request: str, *, secret: bool = True) -> tuple[socket.socket, str]:
    """Returns a connection, and the first line of the answer to a request."""
    made = socket.create_connection(("127.0.0.1", outlet.port), timeout=60)
    word = base64.b64encode(urlsplit(outlet.address).netloc.rpartition("@")[0].encode()).decode()
    field = f"Proxy-Authorization: Basic {word}\r\n" if secret else ""
    made.sendall(f"{request} HTTP/1.1\r\n{field}\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data and (some := made.recv(1 << 16)):
        data += some
    return made, data.decode().partition("\r\n")[0]


def answered(outlet: Outlet, request: str, *, secret: bool = True) -> str:
    made, line = said(outlet, request, secret=secret)
    with made:
        assert "200" in line or made.recv(1) == b""
    return line


def test_bytes_go_both_ways(far: Far) -> None:
    with Outlet(HERE, 1 << 20) as outlet:
        made, line = said(outlet, f"CONNECT 127.0.0.1:{far.port}")
        with made:
            assert line == "HTTP/1.1 200 Connected"
            made.sendall(b"hello")
            assert made.recv(100) == b"hello"
        assert (outlet.arrived, outlet.connections, outlet.refusals) == (5, 1, [])


def test_nobody_else_is_served(far: Far) -> None:
    # every process of this machine can connect to loopback
    with Outlet(HERE, 1 << 20) as outlet:
        line = answered(outlet, f"CONNECT 127.0.0.1:{far.port}", secret=False)
        assert line == "HTTP/1.1 407 Proxy Authentication Required"
        assert (far.heard, outlet.refusals) == ([], [])


@pytest.mark.parametrize(
    ("request_line", "told"),
    [
        ("CONNECT 127.0.0.2:{port}", '"127.0.0.2" has a private address, which is not allowed'),
        ("CONNECT [::1]:{port}", '"::1" has a private address'),
        ("CONNECT 169.254.169.254:80", '"169.254.169.254" has a private address'),
        ("CONNECT 10.0.0.1:443", '"10.0.0.1" has a private address'),
        ("CONNECT [::ffff:10.0.0.1]:443", '"::ffff:10.0.0.1" has a private address'),
        ("CONNECT 0.0.0.0:{port}", '"0.0.0.0" has a private address'),
        ("GET http://127.0.0.1:{port}/", "is not an https address, and only those are fetched"),
        ("POST http://127.0.0.1:{port}/", "is not an https address, and only those are fetched"),
        (f"CONNECT {'a' * 70}.example:443", "is not found: "),
        ("CONNECT", '"" is'),
        ("", "is not an https"),
    ],
)
def test_where_it_does_not_lead(far: Far, request_line: str, told: str) -> None:
    # issue 6: "private addresses and redirects into them refused unless granted"
    with Outlet(HERE, 1 << 20) as outlet:
        assert answered(outlet, request_line.format(port=far.port)) == "HTTP/1.1 403 Forbidden"
        assert told in outlet.refusals[0]
        assert far.heard == []


def test_loopback_is_closed_unless_it_is_named(far: Far) -> None:
    with Outlet((), 1 << 20) as outlet:
        assert answered(outlet, f"CONNECT 127.0.0.1:{far.port}") == "HTTP/1.1 403 Forbidden"
        assert "name its network with --private if you trust it" in outlet.refusals[0]


def test_what_arrives_is_bounded(far: Far) -> None:
    with Outlet(HERE, 1 << 20) as outlet:
        made, _ = said(outlet, f"CONNECT 127.0.0.1:{far.port}")
        with made:
            for _ in range(1000):
                try:
                    made.sendall(b"x" * (1 << 14))
                    if not made.recv(1 << 16):
                        break
                except OSError:
                    break
            else:
                pytest.fail("over 15 MiB came through")
        assert outlet.refusals == ["the fetched files are over 1 MiB"]


def test_a_request_has_an_end() -> None:
    with Outlet(HERE, 1 << 20) as outlet, socket.create_connection(("127.0.0.1", outlet.port), 60) as made:
        made.settimeout(60)
        with suppress(ConnectionError):  # the outlet may close before it has read all of this
            made.sendall(b"x" * (1 << 20))
            assert made.recv(1) == b""
        assert outlet.connections == 0


def test_it_ends_what_it_has_begun(far: Far) -> None:
    with Outlet(HERE, 1 << 20) as outlet:
        made, _ = said(outlet, f"CONNECT 127.0.0.1:{far.port}")
    with made:
        assert made.recv(1) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", outlet.port), 60)


def test_strangers_keep_nobody_out(far: Far) -> None:
    with Outlet(HERE, 1 << 20) as outlet, ExitStack() as ending:
        for _ in range(2 * MAX_CONNECTIONS + 1):
            ending.enter_context(socket.create_connection(("127.0.0.1", outlet.port)))
        assert "200" in answered(outlet, f"CONNECT 127.0.0.1:{far.port}")
