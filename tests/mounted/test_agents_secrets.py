"""An agent with a provider's model: its tools do not find the key, and no part of a run contains it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mounted.acting import acting
from tests.mounted.agents import agent, working, write
from tests.mounted.ctx_mount import NOBODY, mounted
from tests.mounted.test_secrets import contents, declare, holds, keep
from tests.shell import provider_server as play
from tests.shell.provider_server import Move, Provider, Request

# The commands of an attacker who has injected instructions into the model, to search for the key.
LOOK = """
env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; cat {state}/secrets/* {config}/*/* {config}/*
grep -rs . {root}/model/p {root}/agent {root}/home; ls -R {state}; cat {state}/*/*; true
"""


class Injected(Provider):
    """A provider that calls the shell for each new question, and fails after the result."""

    def __init__(self, cmd: str) -> None:
        super().__init__([])
        self.cmd = cmd

    async def moves(self, request: Request) -> Sequence[Move]:
        if "tool_output" in str(request.body):
            return play.status(401, {"error": {"message": f"bad key {play.KEY}"}})
        return play.chat(json.dumps({"tool": "shell.exec", "input": {"cmd": self.cmd}}))


@pytest.mark.parametrize("uid", [None, NOBODY])
def test_a_key_is_out_of_reach_of_an_agents_tools(python: Path, uid: int | None) -> None:
    # issue 4: "No secret in any frame, log, .d/ file, argv, environment of a child, traceback, session file"
    with mounted(python, []) as ctx:
        cmd = LOOK.format(root=ctx.root, state=ctx.state, config=ctx.config)
        with acting(Injected(cmd)) as provider:
            ctx.umount()
            declare(ctx, "p", provider.base_url, ["m"])
            keep(ctx, "p")
            ctx.mount()
            with agent(ctx, "leaky", "shell.exec", model="p/m") as path:
                write(
                    ctx, path, "mount", f"/\t/\trw\t-\n{ctx.work}\t{ctx.work}\trw\t-\n"
                )  # the most that a table can show
                with working(ctx, path, "look around", uid, session="leak") as client:
                    frames = client.until("approval")
                    client.ask(
                        "approve", run=frames[-1]["run"], call=frames[-1]["call"], decision="allow_once"
                    )
                    frames += client.until("done", status="error", code="EACCES")
                told = [frame["output"] for frame in frames if frame["type"] == "tool_result"]
                assert "HOME=" in told[0] or "PATH=" in told[0]
                assert not holds(json.dumps(frames).encode())
                assert not [name for name, data in contents(ctx.root).items() if holds(data)]
                found = {name for name, data in contents(ctx.state).items() if holds(data)}
                assert found == {os.path.join("secrets", "p")}
