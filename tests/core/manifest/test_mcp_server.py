"""The valid entries of an MCP server's file, and the fields that are imported from other clients."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import mcp_server
from cortexfs.core.manifest.mcp_server import (
    MAX_NAME,
    MAX_SECONDS,
    McpServer,
    check_name,
    checked,
    parted,
    takes,
)
from tests.tables import each_of


def refused(**fields: Any) -> str:
    with pytest.raises(Fault) as caught:
        checked(McpServer(**fields))
    assert caught.value.code == "EINVAL"
    return caught.value.message


def test_a_name_has_so_many_characters() -> None:
    assert check_name("x" * MAX_NAME) == "x" * MAX_NAME
    with pytest.raises(Fault, match=f"is longer than {MAX_NAME} characters"):
        check_name("x" * (MAX_NAME + 1))


@each_of(
    "fields",
    [
        {"command": "server", "args": ("-v", "$HOME"), "cwd": "/srv", "env": {"A_1": "a\tb"}},
        {"command": "server", "timeout_secs": 1},
        {"command": "server", "timeout_secs": MAX_SECONDS},
        {"url": "https://example.org/mcp", "headers": {"X-Key": "word two"}},
        {"url": "http://localhost:81/"},
        {"url": "http://127.0.0.1/"},
        {"url": "http://[::1]/"},
    ],
)
def test_what_a_server_may_be(fields: dict[str, Any]) -> None:
    server = McpServer(**fields)
    assert checked(server) == server


@each_of(
    ("fields", "said"),
    [
        ({}, "it needs either command"),
        ({"command": "c", "url": "https://example.org"}, "it needs either command"),
        ({"command": "c", "timeout_secs": 0}, "timeout_secs must be from 1 to"),
        ({"command": "c", "timeout_secs": MAX_SECONDS + 1}, "timeout_secs must be from 1 to"),
        ({"command": "c", "env": {"1A": "x"}}, "env: '1A' is not a valid name"),
        ({"command": "c", "secret_env": {"A-B": "x"}}, "secret_env: 'A-B' is not a valid name"),
        ({"url": "https://a.org", "headers": {"A B": "x"}}, "headers: 'A B' is not a valid name"),
        ({"command": "c", "env": {"A": "${HOME}"}}, r"env.A has a ${...}"),
        ({"command": "c", "args": ("${input:key}",)}, r"a word of its command has a ${...}"),
        ({"command": "c\0"}, "a word of its command has characters that are not allowed"),
        ({"url": "https://a.org", "headers": {"A": "x\ny"}}, "headers.A has characters"),
        ({"url": "https://a.org", "secret_headers": {"A": "x\ny"}}, "secret_headers.A has characters"),
        ({"url": "ftp://a.org"}, "is not an http or https address"),
        ({"url": "https:///path"}, "is not an http or https address"),
        ({"url": "https://[half"}, "is not an http or https address"),
        ({"url": "https://me@a.org"}, "url must not contain a user or password"),
        ({"url": "https://:word@a.org"}, "url must not contain a user or password"),
        ({"url": "http://example.org"}, "example.org is not this machine"),
    ],
)
def test_what_no_server_can_be(fields: dict[str, Any], said: str) -> None:
    assert said in refused(**fields)


def test_patterns_of_tools() -> None:
    # docs/mcp.md: "tools"
    assert takes((), "any")
    assert [takes(("get_*", "!get_key"), tool) for tool in ("get_a", "get_key", "put")] == [
        True,
        False,
        False,
    ]
    assert [takes(("!rm",), tool) for tool in ("rm", "ls")] == [False, True]


def test_secrets_are_parted_from_their_server() -> None:
    env = {"API_KEY": "k", "PLAIN": "p", "TYPED": "t", "EMPTY_TOKEN": ""}
    server, secrets = parted("s", McpServer(command="c", env=env, secret_env={"OLD": "kept"}), ["TYPED"])
    assert server.env == {"PLAIN": "p", "EMPTY_TOKEN": ""}
    names = {key: mcp_server.secret_of("s", key) for key in ("API_KEY", "TYPED")}
    assert server.secret_env == {"OLD": "kept", **names}
    assert secrets == {names["API_KEY"]: "k", names["TYPED"]: "t"}
