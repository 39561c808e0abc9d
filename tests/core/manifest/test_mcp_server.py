"""What a file may say of an MCP server, and what is taken over from other clients."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import mcp_server
from cortexfs.core.manifest.mcp_server import (
    MAX_NAME,
    MAX_SECONDS,
    MAX_SERVERS,
    McpServer,
    check_name,
    checked,
    imported,
    parted,
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
        ({}, "it needs command"),
        ({"command": "c", "url": "https://example.org"}, "it needs command"),
        ({"command": "c", "timeout_secs": 0}, "timeout_secs is from 1 to"),
        ({"command": "c", "timeout_secs": MAX_SECONDS + 1}, "timeout_secs is from 1 to"),
        ({"command": "c", "env": {"1A": "x"}}, "env: '1A' cannot be a name there"),
        ({"command": "c", "secret_env": {"A-B": "x"}}, "secret_env: 'A-B' cannot be a name there"),
        ({"url": "https://a.org", "headers": {"A B": "x"}}, "headers: 'A B' cannot be a name there"),
        ({"command": "c", "env": {"A": "${HOME}"}}, r"env.A has a ${...}"),
        ({"command": "c", "args": ("${input:key}",)}, r"a word of its command has a ${...}"),
        ({"command": "c\0"}, "a word of its command has characters that cannot be there"),
        ({"url": "https://a.org", "headers": {"A": "x\ny"}}, "headers.A has characters"),
        ({"url": "https://a.org", "secret_headers": {"A": "x\ny"}}, "secret_headers.A has characters"),
        ({"url": "ftp://a.org"}, "is no http or https address"),
        ({"url": "https:///path"}, "is no http or https address"),
        ({"url": "https://[half"}, "is no http or https address"),
        ({"url": "https://me@a.org"}, "a password is no part of url"),
        ({"url": "https://:word@a.org"}, "a password is no part of url"),
        ({"url": "http://example.org"}, "example.org is not this machine"),
    ],
)
def test_what_no_server_can_be(fields: dict[str, Any], said: str) -> None:
    assert said in refused(**fields)


def test_servers_of_other_clients() -> None:
    file = {
        "mcpServers": {
            "My Files": {"command": "files", "args": ["/srv"], "cwd": None, "type": "stdio"},
            "far": {"serverUrl": "https://example.org/mcp", "disabled": True, "transport": "http"},
        }
    }
    files, far = imported(file).values()
    assert files == McpServer(command="files", args=("/srv",))
    assert far == McpServer(url="https://example.org/mcp", enabled=False)
    assert imported({"servers": {"a": {"command": "c"}}}) == {"a": McpServer(command="c")}


@each_of(
    ("file", "said"),
    [
        ([], "it has no servers"),
        ({"mcpServers": {}}, "it has no servers"),
        ({"mcpServers": {"a": "command"}}, "a: a server is an object"),
        ({"mcpServers": {"a": {"url": "https://b.org", "type": "sse"}}}, "a: the old transport sse"),
        ({"mcpServers": {"a": {"url": "https://b.org", "transport": "sse"}}}, "a: the old transport sse"),
        ({"mcpServers": {"a": {"command": 1}}}, "a: Expected `str`"),
        ({"mcpServers": {"a": {}}}, "a: it needs command"),
        ({"mcpServers": {"a b": {"command": "c"}, "a-b": {"command": "c"}}}, "would have the same name"),
        ({"mcpServers": {"x" * 40 + each: {"command": "c"} for each in "ab"}}, "would have the same name"),
    ],
)
def test_what_is_not_taken_over(file: Any, said: str) -> None:
    with pytest.raises(Fault, match=f"EINVAL: .*{said}"):
        imported(file)


def test_a_file_has_so_many_servers() -> None:
    servers = {f"s{number}": {"command": "c"} for number in range(MAX_SERVERS)}
    assert len(imported({"mcpServers": servers})) == MAX_SERVERS
    with pytest.raises(Fault, match=f"its {MAX_SERVERS + 1} servers are over {MAX_SERVERS}"):
        imported({"mcpServers": {**servers, "more": {"command": "c"}}})


def test_secrets_are_parted_from_their_server() -> None:
    env = {"API_KEY": "k", "PLAIN": "p", "TYPED": "t", "EMPTY_TOKEN": ""}
    server, secrets = parted("s", McpServer(command="c", env=env, secret_env={"OLD": "kept"}), ["TYPED"])
    assert server.env == {"PLAIN": "p", "EMPTY_TOKEN": ""}
    names = {key: mcp_server.secret_of("s", key) for key in ("API_KEY", "TYPED")}
    assert server.secret_env == {"OLD": "kept", **names}
    assert secrets == {names["API_KEY"]: "k", names["TYPED"]: "t"}
