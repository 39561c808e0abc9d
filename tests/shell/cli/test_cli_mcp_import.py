"""`ctx mcp import` on files of its own, without a mount (docs/mcp.md, "IMPORT")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.shell.cli.test_cli_mcp import file, run, secrets, servers, type_in
from tests.shell.plugin_commands import places

__all__ = ["places"]  # a fixture
pytestmark = pytest.mark.usefixtures("places")


def given(tmp_path: Path, value: Any) -> str:
    made = tmp_path / "given.json"
    made.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(made)


def test_what_is_filled_in_is_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 8.45; issue 16: "`${env:X}` and `${input:X}` (asked once, kept as secrets)"
    monkeypatch.setenv("HERE", "of-the-environment")
    type_in(monkeypatch, "typed-once\n")
    table = {
        "inputs": [{"id": "k", "description": "The key\x1b[31m"}],
        "servers": {
            "a": {"command": "x", "env": {"WHO": "${input:k}", "WHERE": "${env:HERE}", "PLAIN": "p"}},
            "b": {"url": "https://a.org", "headers": {"X-Who": "Bearer ${input:k}"}, "autoApprove": ["rm"]},
        },
    }
    assert run("import", given(tmp_path, table)) == 0
    assert secrets() == {
        "mcp.a.WHO": "typed-once\n",
        "mcp.a.WHERE": "of-the-environment\n",
        "mcp.b.X-Who": "Bearer typed-once\n",
    }
    told = file("a").read_text() + file("b").read_text()
    said = capsys.readouterr()
    for text in (told, said.out, said.err):
        assert not {"typed-once", "of-the-environment"} & set(text.replace('"', " ").split())
        assert "typed-once" not in text
        assert "\x1b" not in text
    assert "b: autoApprove (rm) is ignored" in said.err
    assert f"added a, {file('a')}" in said.err
    assert servers().read("a").env == {"PLAIN": "p"}


def test_nobody_who_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "")
    table = {"a": {"command": "x", "env": {"A": "${env:NOT_SET_HERE}"}}, "b": {"command": "y"}}
    assert run("import", given(tmp_path, {"mcpServers": table})) == 0
    why = "a: it is left out: the variable NOT_SET_HERE is needed"
    assert why in capsys.readouterr().err
    assert not file("a").exists()
    assert file("b").exists()


def test_a_file_in_the_way_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}
    assert run("add", "b", "--", "z") == 0
    assert run("import", given(tmp_path, table)) != 0
    assert "there is an MCP server b already; --replace takes its place" in capsys.readouterr().err
    assert not file("a").exists()
    assert run("import", "--replace", given(tmp_path, table)) == 0
    assert servers().read("b").command == "y"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "it has no servers"),
        ("{", "is no JSON"),
        ('{"servers": {"a": {"command": "\\ud800"}}}', "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "a: it is left out: Expected `str`"),
        ('{"mcpServers": {"a": 7}}', "a: it is left out: a server must be an object"),
        ('{"mcpServers": {"a": {"command": "x", "env": [1]}}}', "a: it is left out: Expected `object`"),
        ('{"mcpServers": {"a": {"command": "x", "args": {"y": 1}}}}', "a: it is left out: Expected `array`"),
        ('{"mcpServers": {"a": {"command": "x", "timeout": 1e999}}}', "a: it is left out: timeout"),
    ],
)
def test_garbage(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str) -> None:
    assert run("import", given(tmp_path, text)) == 2
    assert why in capsys.readouterr().err
    assert not file("a").exists()
