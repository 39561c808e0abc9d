"""Helpers for MCP servers of a mount: declare servers, wait for their tools, find their processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.waiting import until

HOSTILE = Path(__file__).parent / "mcp_server.py"
CONFORMING = Path(__file__).parent / "mcp_conforming.py"


def declare(ctx: Ctx, name: str, text: str) -> None:
    folder = ctx.config / "mcp"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    os.kill(ctx.pid, signal.SIGHUP)


def tool_is(ctx: Ctx, name: str, there: bool = True) -> None:
    """Wait until a tool is there, or is gone."""
    until(lambda: os.path.exists(ctx.tool(name)) == there or ctx.status, lambda seen: seen is True)


def command(*words: str) -> str:
    first, *rest = words
    return f"command = {json.dumps(first)}\nargs = {json.dumps(rest)}\n"


def quiet(ctx: Ctx, python: Path) -> Path:
    """Returns an interpreter that drops errors, as servers report a closed pipe when a mount ends."""
    wrapper = ctx.work / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec {python} "$@" 2>/dev/null\n')
    wrapper.chmod(0o755)
    return wrapper


def program(ctx: Ctx) -> list[str]:
    """Returns the command line of mcp_conforming.py, the server with every feature of the protocol."""
    return [str(quiet(ctx, ctx.python)), "-I", str(ctx.work / CONFORMING.name)]


@pytest.fixture(scope="module")
def place(python: Path) -> Iterator[Ctx]:
    """A mount with the server mcp_conforming.py as `conf`."""
    with mounted(python) as ctx:
        shutil.copy(CONFORMING, ctx.work)
        declare(ctx, "conf", command(*program(ctx)))
        tool_is(ctx, "conf.test_simple_text")
        yield ctx


def servers(ctx: Ctx) -> list[int]:
    """Returns the processes of mcp_server.py in this mount."""
    wanted = os.fsencode(ctx.work / "mcp_server.py")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def describing(ctx: Ctx) -> list[int]:
    """Returns the processes of mcp_server.py that run as nobody. They describe the tools for the tree."""
    found = []
    for pid in servers(ctx):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"/proc/{pid}").st_uid == NOBODY:
                found.append(pid)
    return found


def catches(pid: int, number: int) -> bool:
    """Returns True once the process handles this signal, so that the signal does not end it."""
    caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return int(caught, 16) >> (number - 1) & 1 == 1
