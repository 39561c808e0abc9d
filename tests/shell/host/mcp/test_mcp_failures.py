"""The failures of MCP servers, told by their cause (docs/mcp.md, "A call fails with")."""

from __future__ import annotations

import asyncio
import sys

import anyio
import pytest
from mcp_types import ListToolsResult
from pydantic import ValidationError

from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp import process, stdio
from cortexfs.host.mcp.failures import failure
from cortexfs.host.mcp.limits import Judge
from cortexfs.host.mcp.starting import ServerStart


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
        await pipe.ended.wait()  # who follows it has seen its end, too

    async def hang_up() -> None:
        async with pipe:
            pass

    monkeypatch.setattr(stdio, "LEAVE_SECONDS", 60)
    monkeypatch.setattr(process, "ended", ended)
    anyio.run(hang_up)
    assert pipe.ended.is_set()
    assert (judge.why, judge.has_exited) == ("", False)
