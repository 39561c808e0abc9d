"""net/web.py: a file from an https address, from hostile servers."""

from __future__ import annotations

import socket
import threading

import pytest

from cortexfs.core.errors import Fault
from cortexfs.net import web
from tests.shell.fetched import certificates, site  # noqa: F401  # fixtures
from tests.shell.moduleserver import PRIVATE, Site

MODULE = b"\0asm\1\0\0\0"


@pytest.fixture
def server(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:  # noqa: F811
    """A server whose certificates are trusted by the installing user."""
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    for name in ("HTTPS_PROXY", "https_proxy"):  # no proxy leads around the checks
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return site


def fetch(address: str, private: str = PRIVATE, seconds: float = 60.0) -> bytes:
    return web.download(address, 1 << 20, seconds, private.split(",") if private else ())


def test_what_is_there(server: Site) -> None:
    # seed 004: "entryPoint can be a relative path to a .wasm file or an https:// URL"
    there = server.page("/m.wasm", MODULE)
    assert fetch(there) == fetch(server.redirect("/moved", "/m.wasm")) == MODULE
    assert fetch(server.redirect("/whole", f"{there}?v=1#part".replace("?v=1", ""))) == MODULE


def test_an_address_is_quoted_whole() -> None:
    url = f"https://localhost:99999/{'a' * 99}"
    with pytest.raises(Fault, match=f'"{url}" cannot be fetched: '):
        fetch(url)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("http://localhost/m.wasm", "is not an https address, and only those are fetched"),
        ("file:///etc/passwd", "is not an https address, and only those are fetched"),
        ("https://127.0.0.2/m.wasm", '"127.0.0.2" has a private address'),
        ("https://169.254.169.254/latest", '"169.254.169.254" has a private address'),
        ("https://[::ffff:10.0.0.1]/m.wasm", "has a private address"),
        ("/round", "more than 5 redirects"),
        ("/none", "HTTP 404"),
        ("https://localhost:99999/", "cannot be fetched"),
        ("https://[", "cannot be fetched"),
        ("/a b", "cannot be fetched"),
    ],
)
def test_a_redirect_is_a_request_of_its_own(target: str, why: str, server: Site) -> None:
    # prism-manifest-json.md 3: "redirects off or same-origin, private-address policy"
    with pytest.raises(Fault, match="cannot be fetched") as refused:
        fetch(server.redirect("/round", target))
    assert why in refused.value.message


def test_private_addresses_have_to_be_named(server: Site) -> None:
    with pytest.raises(Fault, match=r'"localhost" has the private address (127\.0\.0\.1|::1), which is'):
        fetch(server.page("/m.wasm", MODULE), private="")
    assert server.asked == []


def test_what_comes_has_bounds(server: Site) -> None:
    with pytest.raises(Fault, match="it is over 1 MiB"):
        fetch(server.page("/large", b"x" * ((1 << 20) + 1)))
    assert len(fetch(server.page("/most", b"x" * (1 << 20)))) == 1 << 20
    server.silent.add("/silent")
    with pytest.raises(Fault, match=r"no whole answer within 0\.2 s") as late:
        fetch(server.page("/silent", MODULE), seconds=0.2)
    assert late.value.code == "ETIMEDOUT"


def test_a_server_that_nobody_vouches_for(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Fault, match="its certificate cannot be trusted"):
        fetch(server.page("/m.wasm", MODULE))


class Proxy:
    """A proxy that answers as the test says, and keeps the requests it got."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked = ""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        client, _ = self.listener.accept()
        with self.listener, client:
            self.asked = client.recv(1 << 16).decode()
            client.sendall(self.answer)

    @property
    def address(self) -> str:
        return f"http://ann:a%20word@127.0.0.1:{self.listener.getsockname()[1]}"


WORD = "Proxy-Authorization: Basic YW5uOmEgd29yZA=="


def test_what_a_person_names_is_asked_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/models.md: "A server on this machine is never asked through a proxy; others are"
    proxy = Proxy(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
    monkeypatch.setenv("http_proxy", proxy.address)
    assert web.download("http://me:too@far.invalid/a?b#c", 10, 60) == b"hi"
    proxy.thread.join()
    line, *fields = proxy.asked.split("\r\n")
    assert line == "GET http://far.invalid/a?b HTTP/1.1"
    assert {"Host: far.invalid", WORD} <= set(fields)
    monkeypatch.setenv("no_proxy", "far.invalid")
    with pytest.raises(Fault, match="its host name is unknown"):
        web.download("http://far.invalid/a", 10, 60)


def test_a_proxy_passes_tls_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, why in (
        (b"HTTP/1.1 407 Who?\r\n\r\n", "its proxy refuses"),
        (b"HTTP/1.0 200 Here\r\n\r\n", "cannot be fetched: (?!its proxy)"),
        (b"", "its proxy refuses"),
    ):
        proxy = Proxy(answer)
        monkeypatch.setenv("https_proxy", proxy.address)
        with pytest.raises(Fault, match=why):
            web.download("https://far.invalid/a", 10, 60)
        proxy.thread.join()
        head = f"CONNECT far.invalid:443 HTTP/1.1\r\nHost: far.invalid:443\r\n{WORD}\r\n\r\n"
        assert proxy.asked == head


def test_this_machine_is_never_asked_of_a_proxy(server: Site) -> None:
    # https_proxy points nowhere
    assert web.download(server.page("/m.wasm", MODULE), 1 << 20, 60) == MODULE
