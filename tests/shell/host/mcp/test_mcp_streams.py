"""Streams over HTTP that a hostile server ends at once, to keep its clients busy."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator

import anyio
import pytest
from mcp import Client

from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp.keeper import Keeper
from cortexfs.mcp import client
from cortexfs.net import bounded
from tests.waiting import until

RESULTS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}}
    | {"serverInfo": {"name": "t", "version": "1"}},
    "tools/list": {"tools": []},
}


class _Hasty(http.server.ThreadingHTTPServer):
    daemon_threads = True
    opened = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Hasty
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for an answer, which else would wait for the client's

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in asked:
            return self.reply(202, b"")
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": RESULTS[asked["method"]]}
        self.reply(200, json.dumps(answer).encode())

    def do_GET(self) -> None:
        self.server.opened += 1
        self.reply(200, b"retry: 0\nid: 1\ndata:\n\n", "text/event-stream")

    def do_DELETE(self) -> None:
        self.reply(200, b"")

    def reply(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(len(data))), ("Content-Type", kind)):
            self.send_header(name, value)
        self.send_header("Mcp-Session-Id", "s")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[_Hasty]:
    with _Hasty(("127.0.0.1", 0), _Handler) as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.01,))
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def test_a_stream_without_a_pause_keeps_no_host_busy(server: _Hasty) -> None:
    # found: such a server had its hosts open hundreds of streams a second, for good
    keeper = Keeper(McpTarget("test", url=f"http://127.0.0.1:{server.server_port}/mcp"))
    try:
        keeper.link()
        begun = time.monotonic()
        until(lambda: server.opened >= bounded.STREAMS)  # a few at once, as streams do break
        time.sleep(1.5)
        seconds = time.monotonic() - begun
        assert server.opened <= bounded.STREAMS + seconds / bounded.STREAM_SECONDS + 1
    finally:
        keeper.close()


def test_nor_a_command(server: _Hasty, monkeypatch: pytest.MonkeyPatch) -> None:
    # found: ctx mcp call opened hundreds of streams a second while its call ran
    monkeypatch.setattr(bounded, "STREAM_SECONDS", 3600.0)

    async def use(one: Client) -> None:
        await anyio.to_thread.run_sync(until, lambda: server.opened >= bounded.STREAMS)
        for _ in range(20):
            await one.list_tools()

    place = client.McpPlace(url=f"http://127.0.0.1:{server.server_port}/mcp")
    client.used(place, use, lambda *_: None, print)
    assert server.opened == bounded.STREAMS
