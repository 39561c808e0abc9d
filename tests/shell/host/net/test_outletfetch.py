"""host/net/egress_fetch.py: a file from an https address, from servers that mean no good."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.host.net import egress_fetch
from tests.shell.fetched import certificates, site  # noqa: F401  # fixtures
from tests.shell.moduleserver import PRIVATE, Site

MODULE = b"\0asm\1\0\0\0"


@pytest.fixture
def server(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:  # noqa: F811
    """One whose certificates whoever installs trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    for name in ("NO_PROXY", "no_proxy"):  # nothing leads around the outlet
        monkeypatch.setenv(name, "*")
    return site


def fetch(address: str, private: str = PRIVATE) -> bytes:
    return egress_fetch.fetch(address, 1 << 20, private.split(",") if private else ())


def test_what_is_there(server: Site) -> None:
    # abi.md 9.29
    there = server.page("/m.wasm", MODULE)
    assert fetch(there) == fetch(server.redirect("/moved", "/m.wasm")) == MODULE
    assert fetch(server.redirect("/whole", f"{there}?v=1#part".replace("?v=1", ""))) == MODULE


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("http://localhost/m.wasm", "is not https, and nothing else is fetched"),
        ("file:///etc/passwd", "is not https, and nothing else is fetched"),
        ("https://127.0.0.2/m.wasm", '"127.0.0.2" has a private address'),
        ("https://169.254.169.254/latest", '"169.254.169.254" has a private address'),
        ("https://[::ffff:10.0.0.1]/m.wasm", "has a private address"),
        ("/round", "it leads on more than 5 times"),
        ("/none", "HTTP 404"),
        ("https://localhost:99999/", "cannot be fetched"),
        ("https://[", "cannot be fetched"),
        ("/a b", "cannot be fetched"),
    ],
)
def test_a_redirect_is_a_request_of_its_own(target: str, why: str, server: Site) -> None:
    # Of the originals: "redirects off or same-origin, private-address policy"
    with pytest.raises(Fault, match="cannot be fetched") as refused:
        fetch(server.redirect("/round", target))
    assert why in refused.value.message


def test_private_addresses_have_to_be_named(server: Site) -> None:
    with pytest.raises(Fault, match="has a private address, and nothing is fetched there"):
        fetch(server.page("/m.wasm", MODULE), private="")
    assert server.asked == []


def test_what_comes_has_bounds(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fault, match="it is over 1 MiB"):
        fetch(server.page("/large", b"x" * ((1 << 20) + 1)))
    assert len(fetch(server.page("/most", b"x" * (1 << 20)))) == 1 << 20
    monkeypatch.setattr(egress_fetch, "SECONDS", 0.2)
    server.silent.add("/silent")
    with pytest.raises(Fault, match=r"it did not arrive within 0\.2 s") as late:
        fetch(server.page("/silent", MODULE))
    assert late.value.code == "ETIMEDOUT"


def test_a_server_that_nobody_vouches_for(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Fault, match="certificate verify failed"):
        fetch(server.page("/m.wasm", MODULE))
