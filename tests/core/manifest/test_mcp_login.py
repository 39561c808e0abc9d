"""A login at an MCP server, as values: when and with what it is renewed, and which answers are valid."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import mcp_login, mcp_server
from cortexfs.core.manifest.mcp_login import McpLogin
from cortexfs.core.manifest.mcp_server import McpServer
from tests.tables import each_of

LOGIN = McpLogin(
    url="https://mcp.example.com/mcp",
    client_id="me:1",
    token_endpoint="https://auth.example.com/token",
    access_token="first",
    refresh_token="again",
    expires=1000,
)


def changed(**values: Any) -> McpLogin:
    return msgspec.structs.replace(LOGIN, **values)


def test_it_is_due_before_its_end() -> None:
    assert LOGIN.due == 1000 - mcp_login.EARLY_SECONDS
    assert changed(expires=0).due is None
    assert changed(refresh_token="").due is None


def test_a_renewal_shows_the_client_as_the_server_wants_it() -> None:
    headers, body = changed(resource="https://mcp.example.com/").renewal()
    form = parse_qs(body.decode())
    assert form["refresh_token"] == ["again"]
    assert form["resource"] == ["https://mcp.example.com/"]
    assert "Authorization" not in headers
    headers, body = changed(client_secret="s", client_auth=mcp_login.BASIC).renewal()
    assert base64.b64decode(headers["Authorization"].split()[1]) == b"me%3A1:s"
    assert b"client_secret" not in body
    headers, body = changed(client_secret="s", client_auth=mcp_login.POST).renewal()
    assert b"client_secret=s" in body
    assert "Authorization" not in headers


def test_an_answer_has_a_token_and_perhaps_another_way_to_the_next() -> None:
    said = LOGIN.renewed({"access_token": "second", "expires_in": 60}, 5000.5)
    assert (said.access_token, said.refresh_token, said.expires) == ("second", "again", 5060)
    said = LOGIN.renewed({"access_token": "second", "refresh_token": "other"}, 5000)
    assert (said.refresh_token, said.expires) == ("other", 0)
    for nothing in ("", 1, None):
        said = LOGIN.renewed({"access_token": "second", "refresh_token": nothing, "expires_in": 0}, 5000)
        assert (said.refresh_token, said.expires) == ("again", 0)


@each_of("said", [{}, {"access_token": ""}, {"access_token": 1}, {"access_token": "a\nb"}])
def test_an_answer_without_a_token_is_none(said: dict[str, Any]) -> None:
    with pytest.raises(Fault, match="has no token"):
        LOGIN.renewed(said, 0)


@each_of(
    ("url", "endpoint", "is_good"),
    [
        ("https://a.example", "https://b.example/token", True),
        ("http://127.0.0.1:1/mcp", "http://localhost:2/token", True),
        ("https://a.example", "http://127.0.0.1:2/token", False),
        ("https://a.example", "http://169.254.169.254/token", False),
        ("https://a.example", "file:///etc/passwd", False),
        ("https://a.example", "https:///token", False),
    ],
)
def test_tokens_are_sent_by_https_or_on_this_machine(url: str, endpoint: str, is_good: bool) -> None:
    login = changed(url=url, token_endpoint=endpoint)
    if is_good:
        assert mcp_login.checked(login) is login
    else:
        with pytest.raises(Fault, match="is not https"):
            mcp_login.checked(login)


def test_only_a_server_with_an_address_has_a_login() -> None:
    with pytest.raises(Fault, match="login needs a server with url"):
        mcp_server.checked(McpServer(command="x", login="mcp.x.login"))
