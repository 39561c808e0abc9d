"""Logins at MCP servers, renewed at a real authorization server that gives one answer."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_login import McpLogin
from cortexfs.core.manifest.mcp_server import McpServer
from cortexfs.plugins.mcp_logins import Logins, renewed
from cortexfs.plugins.mcp_servers import Servers

URL = "http://127.0.0.1:1/mcp"


class Issuer(http.server.BaseHTTPRequestHandler):
    status, said = 200, b'{"access_token": "second", "refresh_token": "more", "expires_in": 3600}'
    asked: list[dict[str, list[str]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(parse_qs(body.decode()))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.said)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def issuer() -> Iterator[type[Issuer]]:
    kind = type("Issuer", (Issuer,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        kind.address = f"http://127.0.0.1:{server.server_port}/token"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield kind
        server.shutdown()
        thread.join()


def login(issuer: type[Issuer], **values: object) -> McpLogin:
    first = McpLogin(
        url=URL,
        client_id="me",
        token_endpoint=issuer.address,  # type: ignore[attr-defined]
        access_token="first",
        refresh_token="again",
        expires=int(time.time()) + 10,
    )
    return msgspec.structs.replace(first, **values)


def test_a_token_is_renewed(issuer: type[Issuer]) -> None:
    said = renewed(login(issuer))
    assert (said.access_token, said.refresh_token) == ("second", "more")
    assert issuer.asked[0]["refresh_token"] == ["again"]


def test_a_refusal_is_told(issuer: type[Issuer]) -> None:
    issuer.status, issuer.said = 400, b'{"error": "invalid_grant"}'
    with pytest.raises(Fault, match="answers HTTP 400 invalid_grant"):
        renewed(login(issuer))
    issuer.status, issuer.said = 200, b"<html>"
    with pytest.raises(Fault, match="answers HTTP 200"):
        renewed(login(issuer))


def test_the_daemon_renews_what_is_due_and_tells_hosts(issuer: type[Issuer], tmp_path: Path) -> None:
    # docs/mcp.md: "renews it in time"
    servers = Servers(tmp_path / "config", tmp_path / "state")
    (tmp_path / "state").mkdir(mode=0o700)
    servers.write({"docs": (McpServer(url=URL), {})}, replace=False)
    servers.keep_login("docs", login(issuer))
    (plugin,) = servers.load({}).plugins
    assert json.loads(plugin.target)["bearer"] == "first"

    async def main() -> None:
        told = trio.Event()

        async def changed() -> None:
            told.set()

        async with trio.open_nursery() as nursery:
            await nursery.start(Logins(servers, changed).run)
            await told.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    (plugin,) = servers.load({}).plugins
    assert json.loads(plugin.target)["bearer"] == "second"
    assert (tmp_path / "state/secrets/mcp.docs.login").stat().st_mode & 0o777 == 0o600
    servers.forget_login("docs")
    assert not (tmp_path / "state/secrets/mcp.docs.login").exists()
    servers.keep_login("docs", login(issuer))
    (tmp_path / "state/secrets/mcp.docs.login").unlink()
    assert "log in again: ctx mcp login docs" in servers.load({}).faults["mcp:docs"]
    servers.remove("docs")


def test_a_login_is_for_the_address_that_it_was_made_at(issuer: type[Issuer], tmp_path: Path) -> None:
    servers = Servers(tmp_path / "config", tmp_path / "state")
    (tmp_path / "state").mkdir(mode=0o700)
    servers.write({"docs": (McpServer(url=URL, login="mcp.docs.login"), {})}, replace=False)
    servers.keep_login("docs", login(issuer, url="http://127.0.0.1:2/mcp"))
    assert "its login is gone" in servers.load({}).faults["mcp:docs"]
