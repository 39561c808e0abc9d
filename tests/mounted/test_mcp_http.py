"""`ctx mcp serve --http`, as a client's bytes have it: blanks, cancellations, streams that break off."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.mounted.ctx_mount import mounted
from tests.mounted.mcp_clients import Served, served
from tests.waiting import PATIENCE

ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
OLD, NEW = "2025-11-25", "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest.fixture(scope="module")
def here(python: Path) -> Iterator[Served]:
    with mounted(python, []) as ctx, served(ctx) as here:
        yield here


@contextlib.contextmanager
def begun(here: Served, message: dict[str, Any] | None, **headers: str) -> Iterator[http.client.HTTPResponse]:
    """A request that is answered, at least with the head of a stream."""
    connection = http.client.HTTPConnection(urlsplit(here.url).netloc, timeout=PATIENCE)
    said = ACCEPT | {"Authorization": f"Bearer {here.token}"} | headers
    data = json.dumps({"jsonrpc": "2.0", **message}) if message else None
    connection.request("POST" if message else "GET", urlsplit(here.url).path, data, said)
    with contextlib.closing(connection), connection.getresponse() as answer:
        yield answer


def greeted(here: Served) -> dict[str, str]:
    """The headers of a session."""
    with begun(here, {"id": 1, "method": "initialize", "params": HELLO}) as answer:
        session = {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": OLD}
    with begun(here, {"method": "notifications/initialized"}, **session) as answer:
        assert answer.status == 202
    return session


def test_blanks_around_a_name_are_no_part_of_it(here: Served) -> None:
    # issue: "trailing blanks in Mcp-Name"
    given = {"name": "text_word_count", "arguments": {"text": "a b"}, "_meta": META}
    call = {"id": 1, "method": "tools/call", "params": given}
    for name, status in (("text_word_count", 200), ("text_word_count \t ", 200), ("text_word", 400)):
        head = {"MCP-Protocol-Version": NEW, "Mcp-Method": "tools/call", "Mcp-Name": name}
        with begun(here, call, **head) as answer:
            assert (name, answer.status) == (name, status)


def test_a_call_that_is_cancelled_is_answered(here: Served) -> None:
    # issue: "no answer after a cancel over HTTP"
    session = greeted(here)
    call = {"name": "shell_exec", "arguments": {"cmd": "sleep 1000"}}
    with begun(here, {"id": 2, "method": "tools/call", "params": call}, **session) as run:
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": 2}}
        with begun(here, cancelled, **session) as answer:
            assert answer.status == 202
        assert b'"message":"Request cancelled"' in run.read()
