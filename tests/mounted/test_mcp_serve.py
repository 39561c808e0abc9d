"""`ctx mcp serve` as clients see it (docs/mcp-serve.md): over standard input and output, and over HTTP."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.subscriptions import ToolsListChanged
from mcp_types import ImageContent, ResourceLink, TextContent, ToolListChangedNotification

from tests.mounted import plugins
from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.mounted.mcp_clients import node_client, npm_packages, over_stdio, served, words
from tests.waiting import PATIENCE

__all__ = ["node_client", "npm_packages"]  # fixtures

ERAS = ["legacy", "auto"]  # with the handshake, and as of 2026-07-28
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PICTURES = """
from cortexfs.sdk import Attachment, ToolResult, tool

@tool(name="{name}")
def run(url: str, mime: str = "image/png") -> ToolResult:
    "For tests."
    return ToolResult.success("made").with_media(Attachment("image", mime, url, "a picture", 1))

plugin = [run]
"""


def text(result: Any) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


@pytest.mark.parametrize("era", ERAS)
def test_tools_of_the_mount_are_the_servers(ctx: Ctx, era: str) -> None:
    # docs/mcp-serve.md: "Names are those of the tree, with `_` for what models do not take"
    async def use(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"fs_read", "fs_write", "shell_exec", "text_word_count"} <= tools.keys()
        read, write, run = tools["fs_read"], tools["fs_write"], tools["shell_exec"]
        assert read.title == "fs.read"
        assert read.input_schema["required"] == ["path"]
        assert read.annotations
        assert read.annotations.read_only_hint is True
        assert write.annotations
        assert (write.annotations.read_only_hint, write.annotations.destructive_hint) == (False, True)
        assert write.annotations.open_world_hint is False
        assert run.annotations
        assert run.annotations.open_world_hint is True

    over_stdio(ctx, use, mode=era)


@pytest.mark.parametrize("era", ERAS)
def test_calls_progress_and_errors(ctx: Ctx, era: str) -> None:
    async def use(client: Client) -> None:
        told: list[str | None] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            told.append(message)

        counted = await client.call_tool("text_word_count", {"text": "how many words"})
        assert (text(counted), counted.is_error) == ("3 words", False)
        assert text(await client.call_tool("text.word_count", {"text": "one"})) == "1 words"
        # issue: "errors as isError results with the frame's sentence"
        missing = await client.call_tool("fs_read", {"path": "/nothing/here"})
        assert missing.is_error
        assert text(missing) == "ENOENT: /nothing/here: No such file or directory"
        wrong = await client.call_tool("fs_read", {"paht": "/nothing"})
        assert wrong.is_error
        assert "did you mean path?" in text(wrong)
        crashed = await client.call_tool("bad_segfault", {})
        assert crashed.is_error
        assert text(crashed).startswith("EPROTO: ")
        shown = await client.call_tool("show_signals", {}, progress_callback=progress)
        assert told == ["half way"]
        assert text(shown) == "streamed returnedeye: seen"
        assert [part.uri for part in shown.content if isinstance(part, ResourceLink)] == ["file:///tmp/a.png"]
        with pytest.raises(MCPError, match="there is no tool 'nope'"):
            await client.call_tool("nope", {})

    over_stdio(ctx, use, mode=era)


def test_it_is_its_user(ctx: Ctx) -> None:
    # issue: "under the caller's policy": the tool sees who started the server, and where
    async def use(client: Client) -> None:
        who = json.loads(text(await client.call_tool("show_who", {})))
        assert (who["uid"], who["cwd"]) == (os.getuid(), str(ctx.work))

    over_stdio(ctx, use)


HELLO = """{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}""".replace("\n", "")
CALL = """{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"NAME","arguments":{},
"_meta":{"progressToken":1}}}""".replace("\n", "")


def started(ctx: Ctx, tool: str, **options: Any) -> subprocess.Popen[str]:
    """Start a server, and send it by hand the request to call this tool."""
    server = subprocess.Popen(
        words(ctx), env=ctx.environ, cwd=ctx.work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        **options,
    )  # fmt: skip
    assert server.stdin is not None
    ready = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    server.stdin.write("\n".join([HELLO, ready, CALL.replace("NAME", tool), ""]))
    server.stdin.flush()
    assert "protocolVersion" in said(server)
    return server


def said(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_users_server_is_that_user(ctx: Ctx) -> None:
    server = started(ctx, "show_who", user=NOBODY, group=NOBODY, extra_groups=[])
    who = json.loads(json.loads(said(server))["result"]["content"][0]["text"])
    assert (who["uid"], who["gid"]) == (NOBODY, NOBODY)
    server.communicate()
    assert server.returncode == 0  # the server ends when its client leaves


def test_only_what_is_allowed_is_offered(ctx: Ctx) -> None:
    async def use(client: Client) -> None:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"fs_glob", "fs_list", "fs_read", "fs_replace", "fs_search", "fs_stat", "fs_write",
                         "text_word_count"}  # fmt: skip
        with pytest.raises(MCPError, match="there is no tool"):
            await client.call_tool("shell_exec", {"command": "true"})

    over_stdio(ctx, use, "--allow", "fs.*", "--allow", "text.word_count")


def test_a_cancelled_call_ends_its_run(ctx: Ctx) -> None:
    async def use(client: Client) -> None:
        asleep = anyio.Event()

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            asleep.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.call_tool, "bad_sleep", progress_callback=progress))
            await asleep.wait()
            assert await anyio.to_thread.run_sync(running, ctx) == 1
            tasks.cancel_scope.cancel()
        await until_idle(ctx)
        assert text(await client.call_tool("text_word_count", {"text": "still here"})) == "2 words"

    over_stdio(ctx, use, mode="legacy")


def running(ctx: Ctx) -> int:
    return int(ctx.status["runs"].split()[0])


def test_a_killed_server_takes_its_runs_along(ctx: Ctx) -> None:
    server = started(ctx, "bad_sleep")
    assert "asleep" in said(server)
    server.kill()
    server.communicate()
    anyio.run(until_idle, ctx)


async def until_idle(ctx: Ctx) -> None:
    with anyio.fail_after(PATIENCE):
        while await anyio.to_thread.run_sync(running, ctx):
            await anyio.lowlevel.checkpoint()


def test_pictures_are_sent_along(fresh: Ctx, tmp_path: Path) -> None:
    # issue: "media as image/resource contents"
    folder = plugins.python(tmp_path, "pictures")
    (folder / "lib/pictures_plugin.py").write_text(PICTURES.format(name="pictures"))
    fresh.ctx("plugin", "install", str(folder), "--yes")
    picture, secret = fresh.work / "a.png", fresh.work / "secret"
    picture.write_bytes(PIXEL)
    secret.write_text("not a picture")

    async def use(client: Client) -> None:
        made = await client.call_tool("pictures", {"url": str(picture)})
        (image,) = [part for part in made.content if isinstance(part, ImageContent)]
        assert (base64.b64decode(image.data), image.mime_type) == (PIXEL, "image/png")
        inline = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
        made = await client.call_tool("pictures", {"url": inline})
        assert [part.data for part in made.content if isinstance(part, ImageContent)] == [image.data]
        # docs/mcp-serve.md: "if its bytes are of its type"; a pipe must not be waited for
        for url in (str(secret), "https://example.com/a.png", str(fifo)):
            made = await client.call_tool("pictures", {"url": url})
            (link,) = [part for part in made.content if isinstance(part, ResourceLink)]
            assert link.uri == (url if url.startswith("https") else f"file://{url}")
            assert link.description == "a picture"

    fifo = fresh.work / "fifo"
    os.mkfifo(fifo)
    over_stdio(fresh, use)


def test_clients_are_told_of_new_tools(fresh: Ctx, tmp_path: Path) -> None:
    # issue: "tools/list_changed when the mount's tools change"
    folder = plugins.program(tmp_path, "greeter")
    changed = anyio.Event()

    async def heard(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async def use(client: Client) -> None:
        assert "greeter" not in {tool.name for tool in (await client.list_tools()).tools}
        await anyio.to_thread.run_sync(lambda: fresh.ctx("plugin", "install", str(folder), "--yes"))
        with anyio.fail_after(PATIENCE):
            await changed.wait()
        assert "greeter" in {tool.name for tool in (await client.list_tools()).tools}
        assert text(await client.call_tool("greeter", {})) == f"hello {os.getuid()}"

    over_stdio(fresh, use, mode="legacy", message_handler=heard)


def test_clients_of_2026_listen_for_new_tools(fresh: Ctx, tmp_path: Path) -> None:
    folder = plugins.program(tmp_path, "greeter")

    async def use(client: Client) -> None:
        async with client.listen(tools_list_changed=True) as events:
            await anyio.to_thread.run_sync(lambda: fresh.ctx("plugin", "install", str(folder), "--yes"))
            with anyio.fail_after(PATIENCE):
                async for event in events:
                    assert isinstance(event, ToolsListChanged)
                    break

    over_stdio(fresh, use)


@pytest.mark.parametrize("era", ERAS)
def test_over_http_with_the_token_that_it_printed(ctx: Ctx, era: str) -> None:
    async def use(client: Client) -> None:
        told: list[str | None] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            told.append(message)

        assert "fs_read" in {tool.name for tool in (await client.list_tools()).tools}
        assert text(await client.call_tool("text_word_count", {"text": "a b"})) == "2 words"
        assert (await client.call_tool("fs_read", {"path": "/nothing"})).is_error
        await client.call_tool("show_signals", {}, progress_callback=progress)
        assert told == ["half way"]

    with served(ctx) as server:
        assert server.url.startswith("http://127.0.0.1:")
        server.use(use, mode=era)


def test_nothing_is_answered_without_the_token(ctx: Ctx, tmp_path: Path) -> None:
    # issue: "never open without a secret"
    secret = "a secret of the user's own"
    file = tmp_path / "token"
    file.write_text(secret.replace(" ", "-") + "\n")
    file.chmod(0o600)
    with served(ctx, "--token-file", str(file), token=secret.replace(" ", "-")) as server:
        for headers in ({}, {"Authorization": "Basic a"}, {"Authorization": "Bearer a-secret"}):
            for path in ("", "/../", "/x"):
                answer = httpx2.post(server.url + path, headers=headers, json={})
                assert answer.status_code == 401, path
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        asked = ctx.ctx("mcp", "inspect", server.url, check=False)
        assert (asked.returncode, "answers HTTP 401; show who you are" in asked.stderr) == (13, True)
        # a page in the user's browser, whose name an attacker has pointed at this machine
        headers = {"Authorization": f"Bearer {server.token}", "Host": "evil.example"}
        assert httpx2.post(server.url, headers=headers, json={}).status_code == 421
        in_view = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert server.token.encode() not in in_view

        async def use(client: Client) -> None:
            assert text(await client.call_tool("text_word_count", {"text": "a"})) == "1 words"

        server.use(use)


REFUSED = [
    (["--http", "nonsense"], "--http is [HOST:]PORT"),
    (["--http", "70000"], "--http is [HOST:]PORT"),
    (["--http", "0.0.0.0:0"], "other machines can reach 0.0.0.0; give a token"),
    (["--token-file", "/dev/null"], "--token-file is for --http"),
    (["--http", "0", "--token-file", "/dev/null"], "other users can open /dev/null"),
]


@pytest.mark.parametrize(("words_", "why"), REFUSED)
def test_what_would_be_open_is_refused(ctx: Ctx, words_: list[str], why: str) -> None:
    done = ctx.ctx("mcp", "serve", *words_, check=False)
    assert done.returncode in (2, 1, 13)
    assert why in done.stderr


def test_the_sdk_is_imported_by_nothing_else() -> None:
    # importing the SDK takes 0.8 s
    code = "import sys, cortexfs.cli.mcp.mcp, cortexfs.daemon.daemon, cortexfs.client"
    code += "; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


CALLS = [
    ["text_word_count", {"text": "how many words"}],
    ["fs_read", {"path": "/nothing/here"}],
    ["bad_sleep", {"seconds": 0.2}],  # this client drops progress that arrives together with the result
]


def check_node(found: dict[str, Any]) -> None:
    assert {"fs_read", "text_word_count"} <= {tool["name"] for tool in found["tools"]}
    counted, missing, _ = found["results"]
    assert counted["content"] == [{"type": "text", "text": "3 words"}]
    assert missing["isError"]
    assert missing["content"][0]["text"].startswith("ENOENT: ")
    assert found["progress"] == ["asleep"]
    assert found["server"]["name"] == "cortexfs"


def test_the_client_for_node_over_stdio(ctx: Ctx, node_client: Callable[..., dict[str, Any]]) -> None:
    # issue: "the official MCP client of another language (npm) against `ctx mcp serve`"
    command, *arguments = words(ctx)
    check_node(node_client(ctx, command=command, args=arguments, calls=CALLS))


def test_the_client_for_node_over_http(ctx: Ctx, node_client: Callable[..., dict[str, Any]]) -> None:
    with served(ctx) as server:
        check_node(node_client(ctx, url=server.url, token=server.token, calls=CALLS))
