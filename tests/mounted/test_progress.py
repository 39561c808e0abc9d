"""Long commands on a real terminal: a person sees what the command waits for, and then its result."""

from __future__ import annotations

import shlex
import sys

from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_places import HOSTILE, tool_is
from tests.mounted.screen import screen


def test_whoever_adds_a_slow_server_sees_that_it_is_asked(fresh: Ctx) -> None:
    begun = fresh.work / "begun"
    wait = f"while [ ! -e {begun} ]; do sleep 0.02; done; exec {sys.executable} -I {HOSTILE}"
    add = ["ctx", "mcp", "add", "slow", "--", "/bin/sh", "-c", wait]
    environ = fresh.environ | {"PATH": f"{fresh.python.parent}:{fresh.environ['PATH']}"}
    with screen(environ, fresh.work, (200, 24)) as shown:
        shown.type(shlex.join(add))
        shown.wait(f"the daemon of {fresh.root} reads the change (")
        begun.touch()
        shown.wait(f"added slow, {fresh.config}/mcp/slow.toml; the change is in effect at {fresh.root}")
        shown.wait_gone("reads the change (")
    tool_is(fresh, "slow.echo")
