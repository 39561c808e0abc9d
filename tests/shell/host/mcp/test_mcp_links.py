"""Connections to untrusted MCP servers (docs/mcp.md, "A call fails with"), as a host keeps them."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp import connection, limits, starting, tools
from cortexfs.host.mcp.keeper import Keeper
from cortexfs.net import bounded
from tests.places import PROJECT

PROGRAM = PROJECT / "tests" / "mounted" / "mcp_server.py"


@pytest.fixture
def keeper() -> Iterator[Callable[..., Keeper]]:
    made: list[Keeper] = []

    def make(**told: Any) -> Keeper:
        made.append(Keeper(McpTarget("test", **told)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def program(*words: str) -> dict[str, Any]:
    return {"command": (sys.executable, "-I", str(PROGRAM), *words)}


def tool(keeper: Keeper, name: str) -> sdk.Tool:
    keeper.link()
    return next(one for one in tools.adapted(keeper) if one.name == f"test.{name}")


def failure(work: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(Fault) as caught:
        work()
    return caught.value.code, caught.value.message


def test_one_that_never_greets_is_given_up(
    keeper: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "STALL_SECONDS", 0.2)
    silent = keeper(**program("silent"))
    why = "the MCP server test did not complete the handshake, and was idle for 0.2 s"
    assert failure(silent.link) == ("EHOSTDOWN", why)


def test_a_start_that_failed_is_tried_again_at_each_call(keeper: Callable[..., Keeper]) -> None:
    # issue: "A failed start is no crash to be punished": what was missing may be there now
    exits = keeper(**program("exits"))
    for _ in range(4):
        said = "the MCP server test does not start: it exited with status 3; it printed last: no key"
        assert failure(exits.link) == ("EHOSTDOWN", said)


def test_one_that_ends_when_it_is_called_is_started_less_and_less(
    keeper: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortexfs.host.mcp.keeper.BACKOFF", (0.0, 9000.0))
    ends = keeper(**program())
    for _ in range(2):
        assert failure(lambda: sdk.run(tool(ends, "die"), {}, sdk.MemoryRuntime()))[0] == "EPROTO"
    code, why = failure(ends.link)
    assert code == "EHOSTDOWN"
    assert why.startswith("the MCP server test was killed by SIGKILL")
    assert "; it has ended 2 times in a row, and is started again in " in why


def test_one_that_cannot_be_started_is_that_for_all_who_ask(keeper: Callable[..., Keeper]) -> None:
    # A reload and a watch call one host at once; once, the second got a server without tools as its answer.
    missing = keeper(command=("/no/such/program",))
    for _ in range(3):  # the order of the threads, and how long they wait, differs each time
        with ThreadPoolExecutor(4) as threads:
            said = list(threads.map(lambda _: failure(missing.link), range(4)))
        why = "the MCP server test: it cannot be started: /no/such/program: No such file or directory"
        assert [code for code, _ in said] == ["EHOSTDOWN"] * 4
        assert all(one.startswith(why) for _, one in said)


def test_a_program_that_no_folder_of_path_has_is_told_so(
    keeper: Callable[..., Keeper], tmp_path: Path
) -> None:
    # If PATH has a closed folder, as /root/bin is to other users, execvpe(3) reports Permission denied.
    closed = {"PATH": f"{tmp_path}/closed:{tmp_path}"}
    code, why = failure(keeper(command=("no-such-program",), environment=closed).link)
    assert code == "EHOSTDOWN"
    assert "no-such-program is not in a folder of PATH that this user can read" in why


def test_a_connection_that_failed_is_closed_before_anybody_hears_of_it() -> None:
    link = connection.Link(McpTarget("test", command=("/no/such/program",)), lambda listed: None)
    seen: list[bool] = []
    link._opened.add_done_callback(lambda _: seen.append(link.is_open))
    link.begin()
    assert failure(link.greeted)[0] == "EHOSTDOWN"
    link.join()
    assert seen == [False]


def test_a_call_that_worked_forgets_former_failures(keeper: Callable[..., Keeper]) -> None:
    works = keeper(**program())
    runtime = sdk.MemoryRuntime()
    for _ in range(5):
        assert sdk.run(tool(works, "echo"), {"text": "a"}, runtime).output == "a"
        assert failure(lambda: sdk.run(tool(works, "die"), {}, runtime))[0] == "EPROTO"


def test_all_calls_have_one_server(keeper: Callable[..., Keeper]) -> None:
    # docs/mcp.md: "a server runs as its caller, in a process for each user"
    works = keeper(**program())
    first = works.link()
    for name in ("echo", "soft", "ask"):
        sdk.run(tool(works, name), {}, sdk.MemoryRuntime())
        assert works.link() is first


def test_calls_run_side_by_side(keeper: Callable[..., Keeper]) -> None:
    works = keeper(**program())
    slow, quick = tool(works, "sleep"), tool(works, "echo")
    waiting = sdk.MemoryRuntime()
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            sdk.run(slow, {}, waiting)
        except sdk.ExecutionFailed as failed:
            heard.append(failed)

    thread = threading.Thread(target=wait)
    thread.start()
    assert sdk.run(quick, {"text": "b"}, sdk.MemoryRuntime()).output == "b"
    waiting.cancel()
    thread.join()
    assert [failed.code for failed in heard if isinstance(failed, sdk.ExecutionFailed)] == ["ECANCELED"]


def cancelled(keeper: Keeper, name: str, then: Callable[[], object] = lambda: None) -> None:
    """Call the tool, and cancel the call once it has begun."""
    begun, runtime = threading.Event(), Watched()
    runtime.begun = begun
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(sdk.run, tool(keeper, name), {}, runtime)
        try:
            assert begun.wait(60)
            then()
        finally:
            runtime.cancel()
        with pytest.raises(sdk.ExecutionFailed) as failed:
            call.result(60)
    assert failed.value.code == "ECANCELED"


class Watched(sdk.MemoryRuntime):
    begun: threading.Event

    def emit_progress(self, message: str) -> None:
        self.begun.set()


def test_one_that_hangs_is_started_again(
    keeper: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 8.34: one that lists no tools within 5 s when a call was given up is started again
    works = keeper(**program())
    pid = json.loads(sdk.run(tool(works, "whoami"), {}, sdk.MemoryRuntime()).output)["pid"]
    monkeypatch.setattr(connection, "HEAR_SECONDS", 0.2)
    cancelled(works, "sleep", lambda: os.kill(pid, signal.SIGSTOP))
    said = sdk.run(tool(works, "whoami"), {}, sdk.MemoryRuntime()).output
    assert json.loads(said)["pid"] != pid


def test_one_that_only_takes_its_time_goes_on(keeper: Callable[..., Keeper]) -> None:
    works = keeper(**program())
    first = works.link()
    cancelled(works, "sleep")
    assert works.link() is first
    assert sdk.run(tool(works, "echo"), {"text": "on"}, sdk.MemoryRuntime()).output == "on"


def test_a_tool_that_goes_while_it_runs_answers_all_the_same(keeper: Callable[..., Keeper]) -> None:
    # issue 6: "changing its tool list while a call runs"
    works = keeper(**program())
    goes = tool(works, "vanish")
    assert sdk.run(goes, {}, sdk.MemoryRuntime()).output == "gone"
    with works._changes:
        assert works._changes.wait_for(lambda: "vanish" not in {one.name for one in works.listed}, 60)
    assert sdk.run(tool(works, "echo"), {"text": "on"}, sdk.MemoryRuntime()).output == "on"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    act: Callable[[_Handler, Any], None]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.act(self, asked)

    def do_GET(self) -> None:
        self.reply(405, b"")

    do_DELETE = do_GET

    def reply(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in (
            {"Content-Length": str(len(data)), "Content-Type": "application/json"} | headers
        ).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def normal(handler: _Handler, asked: Any) -> None:
    """Answer as a small correct server."""
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        | {"serverInfo": {"name": "t", "version": "1"}},
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    }
    if "id" not in asked:
        return handler.reply(202, b"")
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] in results:
        answer["result"] = results[asked["method"]]
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    handler.reply(200, json.dumps(answer).encode())


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), _Handler) as one:
        one.act = normal
        thread = threading.Thread(target=one.serve_forever, args=(0.01,))
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/mcp"


def call(keeper: Keeper) -> sdk.ToolResult:
    return sdk.run(tool(keeper, "echo"), {}, sdk.MemoryRuntime())


def test_a_server_on_http(server: Server, keeper: Callable[..., Keeper]) -> None:
    seen: list[str | None] = []

    def act(handler: _Handler, asked: Any) -> None:
        seen.append(handler.headers["Authorization"])
        normal(handler, asked)

    server.act = act
    one = keeper(url=url(server), headers={"Authorization": "Bearer s"})
    first = one.link()
    assert call(one).output == call(one).output == "hello"
    assert one.link() is first
    assert set(seen) == {"Bearer s"}


FORM = {"message": "well?", "requestedSchema": {"type": "object", "properties": {}}}
REFUSALS = limits.QUESTIONS | {
    "elicitation/create": "this run of the tool cannot ask a person; to answer its questions, use ctx chat "
    "and ctx ask with an agent, or ctx mcp call test, on a terminal"
}


@pytest.mark.parametrize("question", REFUSALS)
def test_questions_on_http_are_refused(server: Server, keeper: Callable[..., Keeper], question: str) -> None:
    # issue: "elicitation refused clearly"
    refused: list[Any] = []
    heard = threading.Event()

    def act(handler: _Handler, asked: Any) -> None:
        if asked.get("id") == "q":
            refused.append(asked["error"])
            heard.set()
            return handler.reply(202, b"")
        if asked["method"] != "tools/call":
            return normal(handler, asked)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        say(handler, {"id": "q", "method": question, "params": FORM})
        assert heard.wait(60)
        say(handler, {"id": asked["id"], "result": {"content": [{"type": "text", "text": "on"}]}})
        handler.close_connection = True

    server.act = act
    assert call(keeper(url=url(server))).output == "on"
    assert refused == [{"code": -32600, "message": REFUSALS[question]}]


def say(handler: _Handler, message: dict[str, Any]) -> None:
    handler.wfile.write(f"event: message\ndata: {json.dumps({'jsonrpc': '2.0'} | message)}\n\n".encode())
    handler.wfile.flush()


def endless(handler: _Handler, asked: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"x" * 65536)
    except OSError:
        handler.close_connection = True


def wrong_id(handler: _Handler, asked: Any) -> None:
    handler.reply(200, b'{"jsonrpc":"2.0","id":99,"result":{"content":[]}}')


def dropped(handler: _Handler, asked: Any) -> None:
    handler.close_connection = True


def html(handler: _Handler, asked: Any) -> None:
    handler.reply(200, b"<html>", Content_Type="text/html")


def redirect(handler: _Handler, asked: Any) -> None:
    handler.reply(307, b"", Location="http://127.0.0.2/")


def internal(handler: _Handler, asked: Any) -> None:
    handler.reply(500, b"oops")


def bomb(handler: _Handler, asked: Any) -> None:
    handler.reply(200, gzip.compress(b"[" * (64 << 20), 9), Content_Encoding="gzip")


@pytest.mark.parametrize("bad", [endless, wrong_id, dropped, html, redirect, internal, bomb])
def test_bad_answers_end_the_call(
    server: Server, keeper: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch, bad: Any
) -> None:
    # issue: "slow, flooding, never answering, answering the wrong id"
    monkeypatch.setattr(bounded, "MAX_ANSWER", 1 << 20)

    def act(handler: _Handler, asked: Any) -> None:
        (bad if asked["method"] == "tools/call" else normal)(handler, asked)

    server.act = act
    link = keeper(url=url(server))
    code, why = failure(lambda: call(link))
    assert code in ("EPROTO", "EHOSTDOWN", "EIO")
    assert why.startswith("the MCP server test ")
    server.act = normal
    assert call(link).output == "hello"


@pytest.mark.parametrize(("status", "code"), [(401, "EACCES"), (403, "EACCES")])
def test_credentials_that_are_refused(
    server: Server, keeper: Callable[..., Keeper], status: int, code: str
) -> None:
    server.act = lambda handler, asked: handler.reply(status, b"")
    assert failure(keeper(url=url(server)).link)[0] == code


def test_nobody_listens(keeper: Callable[..., Keeper]) -> None:
    assert failure(keeper(url="http://127.0.0.1:1/mcp").link)[0] == "EHOSTDOWN"
