"""The kind mcp of manifest.json (abi.md 9.27), as its host runs it."""

from __future__ import annotations

import contextlib
import http.server
import json
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.manifestjson import fields
from cortexfs.host.mcp import manifest_rpc
from cortexfs.plugins import json_kinds
from cortexfs.plugins.install.decisions import NOTHING
from cortexfs.plugins.package import manifests
from tests.shell.webserving import served

FETCH = ("tools", "network:fetch")
Answer = Callable[[dict[str, Any]], Any]


class Server(http.server.ThreadingHTTPServer):
    status = 200
    location = ""
    answer: Answer = staticmethod(lambda asked: {"jsonrpc": "2.0", "id": asked["id"], "result": asked})
    heard: list[tuple[dict[str, str], Any]]
    act: Callable[[_Handler], None] | None = None  # done in place of an answer


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append((dict(self.headers), asked))
        if self.server.act is not None:
            return self.server.act(self)
        said = self.server.answer(asked)
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with served(Server(("127.0.0.1", 0), _Handler)) as one:
        one.heard = []
        yield one


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/rpc"


def tool(url: str, capabilities: tuple[str, ...] = FETCH, **more: Any) -> manifest_rpc.RpcTool:
    endpoint = targets.RpcEndpoint(url, capabilities=capabilities, **more)
    plugin = hostcalls.Plugin("my-plugin", "1.0.0", targets.RPC, targets.target(endpoint))
    (made,) = manifest_rpc.tools(plugin)
    assert isinstance(made, manifest_rpc.RpcTool)
    return made


def run(tool: sdk.Tool, method: str = "greet", **params: Any) -> sdk.ToolResult:
    return sdk.run(tool, {"method": method, "params": params}, sdk.MemoryRuntime())


def test_a_call_is_passed_on(server: Server) -> None:
    # abi.md 9.28
    made = tool(url(server))
    assert made.name == "mcp_my-plugin"
    assert made.description == "MCP plugin: my-plugin"
    asked = {"jsonrpc": "2.0", "id": 1, "method": "greet", "params": {"name": "Ann"}}
    assert json.loads(run(made, name="Ann").output) == asked
    headers, heard = server.heard[0]
    assert heard == asked
    assert headers["Content-Type"] == "application/json"
    sdk.run(made, {"method": "bare"}, sdk.MemoryRuntime())
    assert server.heard[1][1]["params"] == {}


def test_an_error_is_the_tools(server: Server) -> None:
    server.answer = lambda asked: {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "no luck"}}
    assert run(tool(url(server))) == sdk.ToolResult.error("no luck")


WRONG: list[tuple[Any, str]] = [
    ({"jsonrpc": "2.0", "id": 2, "result": 1}, "another request"),
    ({"jsonrpc": "1.0", "id": 1, "result": 1}, "another request"),
    ({"jsonrpc": "2.0", "id": "1", "result": 1}, "does not answer in JSON-RPC"),
    ({"jsonrpc": "2.0", "result": 1}, "does not answer in JSON-RPC"),
    ({"jsonrpc": "2.0", "id": 1}, "neither a result nor an error"),
    (b"<html>", "does not answer in JSON-RPC"),
    (b"", "does not answer in JSON-RPC"),
    (b"[" * 100_000, "does not answer in JSON-RPC"),
    (b"\xff", "does not answer in JSON-RPC"),
]


@pytest.mark.parametrize(("said", "why"), WRONG)
def test_what_is_no_answer_is_eproto(server: Server, said: Any, why: str) -> None:
    # abi.md 9.28
    server.answer = lambda asked: said
    with pytest.raises(sdk.ExecutionFailed, match=why) as caught:
        run(tool(url(server)))
    assert caught.value.code == "EPROTO"


def test_a_status_that_is_no_success_is_none(server: Server) -> None:
    server.status = 500
    with pytest.raises(sdk.ExecutionFailed, match="answers HTTP 500") as caught:
        run(tool(url(server)))
    assert caught.value.code == "EREMOTEIO"


def test_no_redirect_is_followed(server: Server) -> None:
    server.status, server.location = 307, "/elsewhere"
    with pytest.raises(sdk.ExecutionFailed, match="answers HTTP 307"):
        run(tool(url(server)))
    assert len(server.heard) == 1


def test_an_answer_has_a_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_rpc, "MAX_ANSWER", 1000)
    server.answer = lambda asked: {"jsonrpc": "2.0", "id": 1, "result": "x" * 1000}
    with pytest.raises(sdk.ExecutionFailed) as caught:
        run(tool(url(server)))
    assert caught.value.code == "EMSGSIZE"


def test_without_the_capability_there_is_no_request(server: Server) -> None:
    with pytest.raises(Fault, match="network:fetch") as caught:
        run(tool(url(server), ("tools",)))
    assert caught.value.code == "EACCES"
    assert not server.heard


def test_nobody_listens() -> None:
    with pytest.raises(sdk.ExecutionFailed) as caught:
        run(tool("http://127.0.0.1:1/rpc"))
    assert caught.value.code == "EHOSTDOWN"
    assert caught.value.args[0].endswith("request timeout or failed: connection refused")


def dropped(handler: _Handler) -> None:
    handler.close_connection = True


def halved(handler: _Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"jsonrpc":"2.0","id":1,"result":')


def cut(handler: _Handler) -> None:
    """Send text that is whole as JSON, but shorter than its declared length."""
    halved(handler)
    handler.wfile.write(b'"short"}')


def silent(handler: _Handler) -> None:
    handler.rfile.read(1)  # until the caller has left


def trickling(handler: _Handler) -> None:
    with contextlib.suppress(OSError):
        for byte in b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 1_000_000:
            handler.wfile.write(bytes([byte]))
            select.select([], [], [], 0.05)


FAULTS = [
    (dropped, "EHOSTDOWN"),
    (halved, "EHOSTDOWN"),
    (cut, "EHOSTDOWN"),
    (silent, "ETIMEDOUT"),
    (trickling, "ETIMEDOUT"),
]


@pytest.mark.parametrize(("act", "code"), FAULTS)
def test_a_server_that_fails_in_mid_call(
    server: Server, monkeypatch: pytest.MonkeyPatch, act: Callable[[_Handler], None], code: str
) -> None:
    # issue 6: "Deno or a server killed in mid-call (error frame, 70 or 69, back within 1 s), slow, ... never
    # answering"
    made = tool(url(server))
    server.act = act
    with monkeypatch.context() as patched:
        if code == "ETIMEDOUT":
            patched.setattr("cortexfs.host.net.fetch.SECONDS", 0.3)
        with pytest.raises(sdk.ExecutionFailed) as caught:
            run(made)
    assert caught.value.code == code
    assert "the server of my-plugin: " in str(caught.value)
    server.act = None
    assert json.loads(run(made).output)["method"] == "greet"


def test_private_addresses_are_refused_unless_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("10.1.2.3", 443))]
    monkeypatch.setattr("cortexfs.net.web.socket.getaddrinfo", lambda *_, **__: found)
    with pytest.raises(sdk.ExecutionFailed, match="private address") as caught:
        run(tool("https://inside.example/rpc"))
    assert caught.value.code == "EACCES"


def test_a_cancelled_call_waits_for_nothing(server: Server) -> None:
    asked, answered = threading.Event(), threading.Event()

    def answer(_: Any) -> Any:
        asked.set()
        answered.wait()
        return {}

    server.answer = answer
    runtime = sdk.MemoryRuntime()

    def cancel() -> None:
        asked.wait()
        runtime.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(sdk.ExecutionFailed) as caught:
        sdk.run(tool(url(server)), {"method": "m"}, runtime)
    answered.set()
    canceller.join()
    assert caught.value.code == "ECANCELED"


MANIFEST = {
    "name": "my-plugin",
    "version": "1.0.0",
    "description": "Asks a server",
    "kind": "mcp",
    "entryPoint": "https://example.com/rpc",
    "runtime": "deno",
    "capabilities": ["tools", "network:fetch"],
    "tools": [{"name": "greet", "description": "Greets", "params": []}],
}


def test_a_manifest_becomes_the_tool(tmp_path: Path) -> None:
    # abi.md 9.28
    made = manifests.parse_json(json.dumps(MANIFEST).encode(), None, "manifest.json")
    manifest = made.json
    assert isinstance(manifest, fields.JsonManifest)
    plugin = json_kinds.plugin(manifest, tmp_path, NOTHING)
    (one,) = manifest_rpc.tools(plugin)
    assert one.name == "mcp_my-plugin"
    assert one.description == "Asks a server"
    assert one.input_schema["properties"]["method"]["enum"] == ["greet"]
    assert [effect.kind for effect in one.capabilities.effects] == ["network_request"]
