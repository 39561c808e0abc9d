"""`ctx mcp serve --http`, by the bytes of a client: blanks, cancellations, streams that break off."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from cortexfs.mcp import events as mcpevents
from cortexfs.mcp import http as mcphttp
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
    """Send a request, and yield its answer once the head has arrived."""
    connection = http.client.HTTPConnection(urlsplit(here.url).netloc, timeout=PATIENCE)
    said = ACCEPT | {"Authorization": f"Bearer {here.token}"} | headers
    data = json.dumps({"jsonrpc": "2.0", **message}) if message else None
    connection.request("POST" if message else "GET", urlsplit(here.url).path, data, said)
    with contextlib.closing(connection), connection.getresponse() as answer:
        yield answer


def greeted(here: Served) -> dict[str, str]:
    """Begin a session, and return its headers."""
    with begun(here, {"id": 1, "method": "initialize", "params": HELLO}) as answer:
        session = {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": OLD}
    with begun(here, {"method": "notifications/initialized"}, **session) as answer:
        assert answer.status == 202
    return session


def test_strangers_take_neither_memory_nor_all_connections(here: Served) -> None:
    place = urlsplit(here.url)
    with contextlib.ExitStack() as ending:
        for _ in range(2 * mcphttp.MAX_STRANGERS):
            stranger = ending.enter_context(socket.create_connection((place.hostname, place.port)))
            stranger.send(b"P")
        greeted(here)
        assert len(os.listdir(f"/proc/{here.process.pid}/fd")) < 1.5 * mcphttp.MAX_STRANGERS
        head = b"OST / HTTP/1.1\r\n" + b"X: %s\r\n" % bytes(1000).replace(b"\0", b"x") * 30_000
        with pytest.raises(ConnectionError):
            stranger.sendall(head)


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


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the ids and messages of a stream. An empty message only marks the position in the stream."""
    number = ""
    while line := answer.readline():
        key, _, value = line.decode().rstrip("\r\n").partition(": ")
        if key == "id":
            number = value
        elif key == "data":
            yield number, json.loads(value) if value else {}


def test_a_stream_that_broke_off_is_resumed(here: Served, tmp_path: Path) -> None:
    # issue: "resumable streams"
    session, other = greeted(here), greeted(here)
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    call = {"name": "shell_exec", "arguments": {"cmd": f"cat {fifo}"}}
    with begun(here, {"id": 7, "method": "tools/call", "params": call}, **session) as run:
        last, first = next(events(run))
        assert (bool(last), first) == (True, {})
    fifo.write_text("went on\n")  # while no client is connected

    with begun(here, None, **session, **{"Last-Event-ID": last}) as again:
        assert again.status == 200
        (said,) = (message for _, message in events(again) if message)  # the stream ends after one message
    assert (said["id"], "went on" in json.dumps(said["result"])) == (7, True)
    with begun(here, {"id": 7, "method": "ping"}, **other) as pong:
        assert [message for _, message in events(pong) if message] == [
            {"jsonrpc": "2.0", "id": 7, "result": {}}
        ]


async def test_what_is_kept_is_bounded_and_everybodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcpevents, "MAX_EVENTS", 4)
    memory = mcpevents.EventMemory()
    mine, his = mcpevents.EventShelf(memory), mcpevents.EventShelf(memory)
    said: list[str] = []

    async def hear(event: EventMessage) -> None:
        said.append(event.message.method if isinstance(event.message, JSONRPCNotification) else "end")

    def note(method: str) -> JSONRPCNotification:
        return JSONRPCNotification(jsonrpc="2.0", method=method)

    first = await mine.store_event("1", None)
    await his.store_event("1", note("his"))
    await mine.store_event("1", note("mine"))
    await mine.store_event("1", JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
    await his.replay_events_after(first, hear)
    assert said == []
    await mine.replay_events_after(first, hear)
    assert said == ["mine", "end"]
    await mine.store_event("2", note("other"))
    await mine.replay_events_after(first, hear)  # the first event is forgotten
    for wrong in ("", "x", "-1", "9" * 5000):
        await mine.replay_events_after(wrong, hear)
    assert said == ["mine", "end"]


async def test_what_is_said_while_a_stream_resumes_is_not_lost() -> None:
    # issue: "resumable streams"; the SDK follows a stream only some time after it was replayed
    shelf = mcpevents.EventShelf(mcpevents.EventMemory())
    first = await shelf.store_event("1", None)
    notes = [JSONRPCNotification(jsonrpc="2.0", method=str(number)) for number in range(3)]
    await shelf.store_event("1", notes[0])
    said: list[JSONRPCMessage | None] = []

    async def hear(event: EventMessage) -> None:
        said.append(event.message)
        if len(said) < len(notes):
            await shelf.store_event("1", notes[len(said)])
        elif len(said) == len(notes):
            tasks.start_soon(shelf.store_event, "1", end)

    end = JSONRPCResponse(jsonrpc="2.0", id=1, result={})
    async with anyio.create_task_group() as tasks:
        await shelf.replay_events_after(first, hear)
    assert said == [*notes, end]
