"""Tools that an MCP server adds for a single caller, on root's mount, where each caller has a server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.mcp_places import HOSTILE, command, declare, servers, tool_is
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
USER, OTHER = 4242, 4243


@pytest.fixture
def served(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        shutil.copy(HOSTILE, ctx.work)
        declare(ctx, "test", command("/usr/bin/python3", str(ctx.work / "mcp_server.py")))
        tool_is(ctx, "test.echo")
        yield ctx


def own(ctx: Ctx, uid: int) -> list[str]:
    """Returns the tools in a user's home, as that user sees them."""
    return str(ctx.run(["ls", f"{ctx.root}/home/{uid}/tool"], uid=uid).stdout).split()


def test_tools_that_a_server_adds_for_a_caller_are_that_callers(served: Ctx) -> None:
    # abi.md 8.49
    assert served.call("test.grow", uid=USER).output == "grown"
    assert served.call("test.echo", "--text", "x", uid=OTHER).output == "x"
    until(lambda: own(served, USER), lambda seen: "test.grown" in seen)
    assert not os.path.exists(served.tool("test.grown"))
    assert "test.grown" not in own(served, OTHER)
    mine = f"{served.root}/home/{USER}/tool/test.grown"
    assert "is there" in served.run([mine], uid=USER).stdout
    with pytest.raises(PermissionError):
        served.run([mine], uid=OTHER)
    # the tool is gone with its server, even if its user has tried to change or remove it
    served.run(["sh", "-c", f"echo x > {mine}.d/script; rm {mine}"], uid=USER)
    for pid in servers(served):
        if os.stat(f"/proc/{pid}").st_uid == USER:
            os.kill(pid, 9)
    until(lambda: own(served, USER), lambda seen: "test.grown" not in seen)
    assert served.call("test.echo", "--text", "x", uid=USER).output == "x"
