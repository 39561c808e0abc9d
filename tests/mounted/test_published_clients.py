"""Published clients use `ctx mcp serve` (`make test-mcp`): fastmcp, LangChain's adapters, the Inspector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import LANGCHAIN, NODE, PUBLISHED, from_npm, served, stdio, words

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
CLIENTS = Path(__file__).with_name("mcp_published_clients.py")
CALLS = [("text_word_count", {"text": "one two three"}), ("fs_read", {"path": "/nowhere"})]


def use(ctx: Ctx, client: str, **place: Any) -> dict[str, Any]:
    asked = json.dumps(place | {"calls": CALLS})
    folder = LANGCHAIN if client == "langchain" else PUBLISHED
    done = ctx.run([str(folder / "bin/python"), str(CLIENTS), client, asked])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(said: dict[str, Any]) -> None:
    assert {"text_word_count", "fs_read"} <= set(said["tools"])
    (counted, (is_error, missing)) = said["results"]
    assert counted == [False, ["3 words"]]
    assert is_error
    assert "ENOENT" in "".join(missing)


@pytest.mark.parametrize("client", ["fastmcp", "langchain"])
def test_over_stdio(ctx: Ctx, client: str) -> None:
    server = stdio(ctx)
    check(use(ctx, client, command=server.command, args=server.args, env=server.env))


@pytest.mark.parametrize("client", ["fastmcp", "langchain"])
def test_over_http(ctx: Ctx, client: str) -> None:
    with served(ctx) as server:
        check(use(ctx, client, url=server.url, token=server.token))


def test_the_inspector(ctx: Ctx) -> None:
    program = from_npm("inspector", INSPECTOR) / "node_modules/.bin/mcp-inspector"

    places = [word for name in ("CTX_ROOT", "HOME") for word in ("-e", f"{name}={ctx.environ[name]}")]

    def ask(*more: str) -> dict[str, Any]:
        done = ctx.run([str(NODE), str(program), "--cli", *places, *words(ctx), *more])
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    tools = {tool["name"] for tool in ask("--method", "tools/list")["tools"]}
    assert {"text_word_count", "fs_read"} <= tools
    said = ask("--method", "tools/call", "--tool-name", "text_word_count", "--tool-arg", "text=one two three")
    assert "3" in said["content"][0]["text"]
