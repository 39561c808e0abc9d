"""The greeting of `ctx mcp serve` on standard output, which is sent before the SDK is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.mounted import mcp_places
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import served, words
from tests.mounted.test_mcp_http import HELLO, begun

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "1999-01-01")
OURS = ("--server", "conf")
place = mcp_places.place


def said(ctx: Ctx, *lines: dict[str, Any] | str, more: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Send lines and a ping, and return all messages up to the answer to the ping."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in (*lines, PING))
    found: list[dict[str, Any]] = []
    with started(ctx, *words(ctx, *more)) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(text)
        process.stdin.flush()
        while not found or found[-1].get("id") != PING["id"]:
            found.append(json.loads(process.stdout.readline()))
        process.kill()
    return found


def started(ctx: Ctx, *command: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=ctx.environ, cwd=ctx.work, text=True, **pipes)


def greeting(version: str, number: Any = 1) -> dict[str, Any]:
    params = HELLO | {"protocolVersion": version}
    return {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params}


PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


@pytest.mark.parametrize("line", [b'{"method":"\xff"}\n', b'{"x":' + b"[" * 5000 + b"\n"])
def test_a_first_line_that_is_none_is_left_to_the_sdk(line: bytes) -> None:
    program = "import os; from cortexfs.mcp import greeting; os.write(1, greeting.early(False).line)"
    run = subprocess.run([sys.executable, "-c", program], input=line, capture_output=True, check=True)
    assert run.stdout == line


PONG = {"jsonrpc": "2.0", "id": 2, "result": {}}


@pytest.mark.parametrize(
    ("more", "versions"),
    [((), VERSIONS), (("--allow", "fs.*"), VERSIONS[3:]), (("--code",), VERSIONS[:1]), (OURS, VERSIONS[3:4])],
)
def test_it_is_the_one_that_the_sdk_would_give(
    place: Ctx, more: tuple[str, ...], versions: tuple[str, ...]
) -> None:
    # docs/mcp-serve.md; issue: "serve answers initialize in 0.5 s"
    with served(place, *more) as here:
        for version in versions:
            with begun(here, greeting(version)) as answer:
                theirs = json.loads(answer.read().decode().split("data: ")[-1].strip() or "{}")
            assert said(place, greeting(version), more=more) == [theirs, PONG]


@pytest.mark.parametrize("more", [(), ("--code",), OURS])
def test_it_comes_before_the_sdk(place: Ctx, more: tuple[str, ...]) -> None:
    command = (str(place.python), "-I", "-X", "importtime", *words(place, *more)[2:])
    with started(place, *command) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(greeting("2025-11-25", "one")) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == "one"
        process.kill()
        assert "mcp_types._types" not in process.communicate()[1]


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "garbage",
        "[]",
        json.dumps(greeting("2025-11-25") | {"id": None}),
        json.dumps(greeting("2025-11-25") | {"params": {}}),
        json.dumps(greeting("2025-11-25") | {"jsonrpc": "1.0"}),
        "x" * (70 << 10),
    ],
)
def test_what_is_odd_is_left_to_the_sdk(place: Ctx, odd: str) -> None:
    *_, greeted, pong = said(place, odd, greeting("2025-11-25", 7))
    assert (greeted["id"], pong) == (7, PONG)
