"""The MCP servers of other clients' files (docs/mcp.md, "IMPORT")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_import import MAX_SERVERS, Import, Imported, WantedInput, all_of, read
from cortexfs.core.manifest.mcp_server import MAX_SECONDS, McpServer
from tests.tables import each_of


def test_servers_of_other_clients() -> None:
    file = {
        "mcpServers": {
            "My Files": {"command": "files", "args": ["/srv"], "cwd": None, "type": "stdio"},
            "far": {"serverUrl": "https://example.org/mcp", "disabled": True, "transport": "http"},
        }
    }
    files, far = all_of(file).values()
    assert files == McpServer(command="files", args=("/srv",))
    assert far == McpServer(url="https://example.org/mcp", enabled=False)
    assert all_of({"servers": {"a": {"command": "c"}}}) == {"a": McpServer(command="c")}


@each_of(
    ("file", "said"),
    [
        ([], "it has no servers"),
        ({"mcpServers": {}}, "it has no servers"),
        ({"mcpServers": {"a": "command"}}, "a: a server must be an object"),
        ({"mcpServers": {"a": {"url": "https://b.org", "type": "sse"}}}, "a: the old transport sse"),
        ({"mcpServers": {"a": {"url": "https://b.org", "transport": "sse"}}}, "a: the old transport sse"),
        ({"mcpServers": {"a": {"command": 1}}}, "a: Expected `str`"),
        ({"mcpServers": {"a": {}}}, "a: it needs either command"),
        ({"mcpServers": {"a b": {"command": "c"}, "a-b": {"command": "c"}}}, "would have the same name"),
        ({"mcpServers": {"x" * 40 + each: {"command": "c"} for each in "ab"}}, "would have the same name"),
    ],
)
def test_what_is_not_taken_over(file: Any, said: str) -> None:
    with pytest.raises(Fault, match=f"EINVAL: .*{said}"):
        all_of(file)


def test_a_file_has_so_many_servers() -> None:
    servers = {f"s{number}": {"command": "c"} for number in range(MAX_SERVERS)}
    assert len(all_of({"mcpServers": servers})) == MAX_SERVERS
    with pytest.raises(Fault, match=f"its {MAX_SERVERS + 1} servers are over the limit of {MAX_SERVERS}"):
        all_of({"mcpServers": {**servers, "more": {"command": "c"}}})


class Filling:
    """A person who types the values that a file wants."""

    def __init__(self, **variables: str) -> None:
        self.variables = variables
        self.asked: list[WantedInput] = []

    def variable(self, name: str) -> str | None:
        return self.variables.get(name)

    def place(self, name: str) -> str | None:
        return {"workspaceFolder": "/home/ann/project", "userHome": "/home/ann"}.get(name)

    def ask(self, wanted: WantedInput) -> str:
        self.asked.append(wanted)
        return f"<{wanted.name}>"


def taken(filling: Filling, **servers: Any) -> Imported:
    return Import(filling).of({"mcpServers": servers})


VS_CODE = """
// of the workspace
{
  "inputs": [
    {"type": "promptString", "id": "key", "description": "API // key", "password": true},
    {"type": "pickString", "id": "where", "description": "Region", "options": ["eu", "us"], "default": "eu"},
  ],
  /* two of them */
  "servers": {
    "one": {"type": "stdio", "command": "npx", "args": ["-y", "a", "${workspaceFolder}"],
            "env": {"API": "${input:key}", "PLAIN": "1"}, "envFile": "${workspaceFolder}/.env"},
    "two": {"type": "http", "url": "https://a.org/mcp", // remote
            "headers": {"X-Who": "Bearer ${input:key}"}},
  },
}
"""


def test_a_file_of_vs_code() -> None:
    filling = Filling()
    found = Import(filling).of(read(VS_CODE))
    one, two = found.servers.values()
    assert one == McpServer(
        command="npx", args=("-y", "a", "/home/ann/project"), env={"API": "<key>", "PLAIN": "1"}
    )
    assert two == McpServer(url="https://a.org/mcp", headers={"X-Who": "Bearer <key>"})
    assert found.typed == {"one": {"API"}, "two": {"X-Who"}}  # secrets, although no name says so
    assert filling.asked == [WantedInput("key", "API // key")]  # asked once only
    assert found.notes == ["one: envFile is left out"]


def test_files_of_cursor_and_claude_code() -> None:
    filling = Filling(TOKEN="t")
    env = {
        "A": "${env:TOKEN}",
        "B": "${MISSING:-fallback}",
        "C": "${env:ASKED}",
        "D": "${userHome}/d",
        "N": 5,
    }
    found = taken(filling, a={"command": "${userHome}/bin/x", "env": env, "cwd": "sub"})
    server = found.servers["a"]
    assert server.env == {"A": "t", "B": "fallback", "C": "<ASKED>", "D": "/home/ann/d", "N": "5"}
    assert (server.command, server.cwd) == ("/home/ann/bin/x", "/home/ann/project/sub")
    assert found.typed["a"] == {"A", "B", "C"}
    assert [one.name for one in filling.asked] == ["ASKED"]


def test_what_gemini_cline_and_others_say() -> None:
    found = taken(
        Filling(),
        a={"command": "c", "timeout": 30000, "includeTools": ["get(x)", "list"], "excludeTools": ["rm"]},
        b={"httpUrl": "https://a.org", "timeout": 45, "disabledTools": ["b"], "trust": True},
        c={"command": "c", "autoApprove": ["one", "two"], "alwaysAllow": [], "icon": "x", "_note": 1},
        d={"command": {"path": "p", "args": ["1"], "env": {"A": "b"}}},
        e={"command": "c", "enabled": False},
    )
    servers = found.servers
    assert (servers["a"].timeout_secs, servers["a"].tools) == (30, ("get", "list", "!rm"))
    assert (servers["b"].timeout_secs, servers["b"].tools) == (45, ("!b",))
    assert servers["d"] == McpServer(command="p", args=("1",), env={"A": "b"})
    assert not servers["e"].enabled
    assert found.notes == [
        "b: trust is ignored, as policy decides here; see: ctx policy",
        "c: autoApprove (one, two) is ignored, as policy decides here; see: ctx policy",
        "c: icon is left out",
    ]


def test_what_cannot_be_had_is_left_out_and_said() -> None:
    found = taken(
        Filling(),
        old={"type": "sse", "url": "https://a.org"},
        odd={"command": "x", "args": ["${command:pick}"]},
        slow={"command": "x", "timeout": "soon"},
        good={"command": "x", "args": ["--key", "${input:k}"]},
    )
    assert list(found.servers) == ["good"]
    assert found.notes == [
        "old: it is left out: the old transport sse is not supported; use its streamable HTTP address",
        "odd: it is left out: ${command:pick} is unknown here; write its value",
        "slow: it is left out: timeout must be a number of seconds, or of milliseconds from 1000 on",
        "good: args contains a value that was filled in, and every user can read it",
    ]
    with pytest.raises(Fault, match="old: it is left out"):
        taken(Filling(), old={"type": "sse", "url": "https://a.org"})


def test_a_filled_in_value_is_not_filled_in_again() -> None:
    with pytest.raises(Fault, match="another client would fill in"):
        taken(Filling(A="${input:b}"), a={"command": "c", "env": {"X": "${env:A}"}})


@each_of(
    ("text", "value"),
    [
        ('{"a": "http://x//y", // no\n "b": [1, 2,], }', {"a": "http://x//y", "b": [1, 2]}),
        ('{"a": "/* stays */", /* goes */ "b": ",}"}', {"a": "/* stays */", "b": ",}"}),
        ('{"a": "\\"//"}', {"a": '"//'}),
    ],
)
def test_comments_and_last_commas(text: str, value: Any) -> None:
    assert read(text) == value


@each_of("text", ["{", "// nothing", '{"a": "\\ud800"}', '{"a" /* no end'])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"line 1|surrogates"):
        read(text)


def test_a_text_or_comment_without_an_end_is_looked_for_once() -> None:
    for text in ('"' + '\\"' * 200_000, "/* " * 200_000, '"' + "\\" * 200_001):
        with pytest.raises(json.JSONDecodeError):
            read(text)


def test_an_input_without_a_name_is_passed_over() -> None:
    file = {"inputs": ["x", {"id": 1}, {"description": "y"}], "servers": {"a": {"command": "c"}}}
    assert all_of(file) == {"a": McpServer(command="c")}


def test_a_number_becomes_the_word_of_a_variable_and_nothing_else_does() -> None:
    found = taken(Filling(), a={"command": "c", "env": {"N": 5, "F": 0.5}})
    assert found.servers["a"].env == {"N": "5", "F": "0.5"}
    for value in (True, ["x"], None):
        with pytest.raises(Fault, match="it is left out: Expected `str`"):
            taken(Filling(), a={"command": "c", "env": {"N": value}})


@each_of(
    ("timeout", "seconds"),
    [(1, 1), (999, 999), (1000, 1), (1500, 2), (MAX_SECONDS * 1000 - 1, MAX_SECONDS)],
)
def test_a_timeout_of_a_thousand_and_more_is_in_milliseconds(timeout: int, seconds: int) -> None:
    assert all_of({"servers": {"a": {"command": "c", "timeout": timeout}}})["a"].timeout_secs == seconds


@each_of("timeout", [0, -1, True, "5", MAX_SECONDS * 1000])
def test_what_is_no_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(Fault, match="timeout"):
        all_of({"servers": {"a": {"command": "c", "timeout": timeout}}})
