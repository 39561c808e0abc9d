"""Hostile servers on HTTP that a command uses directly, or logs in at."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import anyio
import pytest

from cortexfs.core.errors import Fault
from cortexfs.mcp import client, login
from cortexfs.net import bounded

MOST = 1 << 20
WHY = "cannot be used: it sent an answer of over 1 MiB"


class _Hostile(http.server.ThreadingHTTPServer):
    daemon_threads = True
    sent = 0
    status = 200
    is_packed = False


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Hostile

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.server.status)

    def do_GET(self) -> None:
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 401:
            self.send_header("Content-Length", "0")
        if self.server.is_packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        piece = gzip.compress(b"[" * (64 << 20), 9) if self.server.is_packed else b"[" * (64 << 10)
        with suppress(OSError):
            while status != 401 and self.server.sent < 64 << 20:
                self.wfile.write(piece)
                self.server.sent += len(piece)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Hostile]:
    monkeypatch.setattr(bounded, "MAX_ANSWER", MOST)
    with _Hostile(("127.0.0.1", 0), _Handler) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def url(server: _Hostile) -> str:
    return f"http://127.0.0.1:{server.server_port}/mcp"


def failure(work: Callable[[], object]) -> str:
    with pytest.raises(Fault) as caught:
        work()
    return caught.value.message


def listed(server: _Hostile) -> None:
    client.used(client.McpPlace(url=url(server)), lambda one: one.list_tools(), lambda *_: None, print)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_end_is_not_read(server: _Hostile, status: int) -> None:
    server.status = status
    assert failure(lambda: listed(server)) == f"the MCP server {url(server)} {WHY}"
    assert server.sent < 32 << 20  # buffers of sockets


def test_no_answer_is_unpacked(server: _Hostile) -> None:
    server.is_packed = True
    assert failure(lambda: listed(server)) == f"the MCP server {url(server)} {WHY}"


def test_nor_is_an_endless_description_of_where_to_log_in(server: _Hostile) -> None:
    server.status = 401
    said = failure(lambda: anyio.run(login.logged_in, url(server), login.LoginWish(), print))
    assert said == f"{url(server)} {WHY}"
    assert server.sent < 32 << 20
