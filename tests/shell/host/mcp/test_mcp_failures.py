"""The failures of MCP servers, reported with their causes (docs/mcp.md, "A call fails with")."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp_types import ListToolsResult
from pydantic import ValidationError

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import NOBODY
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp import process, stdio, tools
from cortexfs.host.mcp.failures import failure, lost
from cortexfs.host.mcp.keeper import Keeper
from cortexfs.host.mcp.limits import Judge
from cortexfs.host.mcp.starting import ServerStart
from tests.waiting import PATIENCE


def test_what_a_server_answers_wrong_counts_more_than_its_end() -> None:
    # abi.md 8.51
    judge = Judge()
    judge.why, judge.has_exited = "exited with status 0", True
    with pytest.raises(ValidationError) as wrong:
        ListToolsResult.model_validate({"tools": {"t": 1}})
    said = failure(wrong.value, "bad", judge, is_program=True).fault
    assert (said.code, said.message) == (
        "EPROTO",
        "the MCP server bad does not speak the protocol: tools: Input should be a valid list",
    )
    unfit = RuntimeError("Invalid structured content returned by tool t: 1 is not of type 'string'\n\nOn: 1")
    said = failure(unfit, "bad", judge, is_program=True).fault
    assert said.message == "the MCP server bad breaks its tool's output schema: 1 is not of type 'string'"


def test_one_that_ends_as_we_hang_up_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 8.51
    judge, real = Judge(), process.ended
    command = (sys.executable, "-I", "-c", "import sys; sys.stdin.read()")
    pipe = stdio.Pipe(McpTarget("test", command=command), judge, ServerStart())

    async def ended(of: asyncio.subprocess.Process) -> None:
        monkeypatch.setattr(process, "ended", real)
        await real(of)
        await pipe.ended.wait()  # by then the reader of the pipe has seen its end, too

    async def hang_up() -> None:
        async with pipe:
            pass

    monkeypatch.setattr(stdio, "LEAVE_SECONDS", 60)
    monkeypatch.setattr(process, "ended", ended)
    anyio.run(hang_up)
    assert pipe.ended.is_set()
    assert (judge.why, judge.has_exited) == ("", False)


# A server that answers calls with the lines of its second argument. ID stands for the request's number.
SAYS = """
import json, sys

for line in sys.stdin.buffer:
    asked = json.loads(line)
    answer = {"initialize": sys.argv[1], "tools/list": sys.argv[2]}.get(asked["method"], "")
    if asked["method"] == "tools/call":
        answer = asked["params"]["arguments"]["line"]
    sys.stdout.buffer.write(answer.replace("ID", str(asked.get("id"))).encode("latin-1") + b"\\n")
    sys.stdout.buffer.flush()
"""
GREETING = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "t", "version": "1"}}
LIST = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}


def answer(result: str) -> str:
    return f'{{"jsonrpc":"2.0","id":ID,"result":{result}}}'


@pytest.fixture
def says() -> Iterator[sdk.Tool]:
    words = (answer(json.dumps(GREETING)), answer(json.dumps(LIST)))
    keeper = Keeper(McpTarget("bad", command=(sys.executable, "-I", "-c", SAYS, *words)))
    keeper.link()
    yield next(one for one in tools.adapted(keeper) if one.name == "bad.t")
    keeper.close()


def called(tool: sdk.Tool, line: str) -> str:
    """Call the tool, and cancel the call if no answer comes."""
    runtime = sdk.MemoryRuntime()
    patience = threading.Timer(PATIENCE, runtime.cancel)
    patience.start()
    try:
        return sdk.run(tool, {"line": line}, runtime).output
    finally:
        patience.cancel()


def test_an_answer_that_is_no_utf8_is_one_all_the_same(says: sdk.Tool) -> None:
    # abi.md 8.52
    line = answer('{"content":[{"type":"text","text":"caf\xe9"}]}')
    assert called(says, line) == "caf\ufffd"


@pytest.mark.parametrize("line", [answer('{"content":'), answer('"text"')])
def test_an_answer_that_is_no_message_ends_its_call(says: sdk.Tool, line: str) -> None:
    # abi.md 8.52
    with pytest.raises(sdk.ExecutionFailed) as failed:
        called(says, f"Loading\n{line}")
    assert failed.value.code == "EPROTO"
    told = re.sub(r"\d{8}", "ID", failed.value.args[0])
    assert told == f"the MCP server bad sent an answer outside of the protocol: {line}"
    works = answer('{"content":[{"type":"text","text":"on"}]}')
    assert called(says, works) == "on"


def test_a_program_that_is_no_server_is_quoted() -> None:
    # abi.md 8.52
    keeper = Keeper(McpTarget("bad", command=(sys.executable, "-I", "-c", "print('Usage: bad FILE')")))
    with pytest.raises(Fault) as fault:
        keeper.link()
    keeper.close()
    why = "exited with status 0; it printed 1 line outside of the protocol, the last: Usage: bad FILE"
    assert fault.value.message == f"the MCP server bad does not start: it {why}"


def test_a_start_that_fails_for_nobody_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # abi.md 8.56
    whom = "as nobody, who lists the tools of servers on a mount of root's"
    monkeypatch.setattr("os.geteuid", lambda: NOBODY)
    judge = Judge()
    judge.why, judge.has_exited = "exited with status 1", True
    said = lost("bad", judge, is_program=True).message
    assert said == f"the MCP server bad does not start {whom}: it exited with status 1"
    judge.has_greeted = True
    assert lost("bad", judge, is_program=True).message == "the MCP server bad exited with status 1"
    closed = tmp_path / "closed"
    closed.touch(0o600)
    keeper = Keeper(McpTarget("bad", command=(str(closed),)))
    with pytest.raises(Fault) as fault:
        keeper.link()
    keeper.close()
    why = f"it cannot be started {whom}: {closed}: Permission denied"
    assert fault.value.message == f"the MCP server bad: {why}"
