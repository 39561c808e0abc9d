"""The cost of a tool of an MCP server over stdio: through the mount, and from a client started for each call.

Two servers: a handwritten server that answers at once, so that only the way to it is measured, and an
official server in Python, which itself needs most of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench import measure
from tests.bench.wasm import Calls, called
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_places import HOSTILE, command, declare, tool_is

ROUNDS = 500


class Asked(NamedTuple):
    server: list[str]
    tool: str
    input: dict[str, str]


PLAIN = Asked([sys.executable, "-I", str(HOSTILE)], "whoami", {})
OFFICIAL = Asked([sys.executable, "-I", "-m", "mcp_server_time"], "get_current_time", {"timezone": "UTC"})
_CLIENT = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters

async def main(server, tool, arguments):
    async with Client(StdioServerParameters(command=server[0], args=server[1:])) as client:
        print((await client.call_tool(tool, arguments)).content[0].text)

asyncio.run(main(*json.loads(sys.argv[1])))
"""


def through_the_mount(ctx: Ctx, name: str, asked: Asked) -> Calls:
    declare(ctx, name, command(*asked.server))
    tool = f"{name}.{asked.tool}"
    tool_is(ctx, tool)
    return called(ctx, tool, json.dumps(asked.input))


def a_client_for_each(asked: Asked) -> float:
    """ms: from the start of a client to its end."""
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        script = Path(folder) / "client.py"
        script.write_text(_CLIENT)
        words = [sys.executable, "-I", str(script), json.dumps(asked)]
        return sorted(measure.spawn(words, dict(os.environ)) for _ in range(10))[5]


class Bare(NamedTuple):
    """ms: the server's own time, as measured at the other end of its pipes."""

    greeted: float  # from its start to the answer to initialize
    first: float  # from its start to the answer to the first call, after its tools were listed
    call: float


def served(ctx: Ctx, name: str, asked: Asked) -> tuple[Bare, Bare]:
    """The times of `ctx mcp serve`: with the server's tool beside all others, and with `--server NAME`."""
    words = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "mcp", "serve"]
    plain = asked._replace(server=words, tool=f"{name}_{asked.tool}")
    return alone(plain, ctx.environ), alone(asked._replace(server=[*words, "--server", name]), ctx.environ)


def alone(asked: Asked, environ: dict[str, str] | None = None) -> Bare:
    began = time.perf_counter()
    with subprocess.Popen(
        asked.server,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
    ) as server:
        to, said = server.stdin, server.stdout
        assert to is not None
        assert said is not None

        def ask(number: int, method: str, **params: Any) -> None:
            question = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            to.write(json.dumps(question).encode() + b"\n")
            to.flush()
            while "id" not in (answer := json.loads(said.readline())):
                pass  # a notification
            assert "result" in answer

        who = {"name": "bench", "version": "1"}
        ask(0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=who)
        greeted = (time.perf_counter() - began) * 1e3
        to.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        ask(1, "tools/list")
        call = partial(ask, 2, "tools/call", name=asked.tool, arguments=asked.input)
        call()
        first = (time.perf_counter() - began) * 1e3
        return Bare(greeted, first, measure.per_call(call, ROUNDS) / 1e3)
