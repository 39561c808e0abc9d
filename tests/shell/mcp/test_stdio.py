"""Standard input and output of `ctx mcp serve`: pipes, files, and slow clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ECHO = """
import threading
import anyio
from cortexfs.mcp.greeting import Greeted
from cortexfs.mcp.stdio import StdioInput, StdioOutput

async def main():
    read, written = StdioInput(Greeted(b"first\\n")), StdioOutput(Greeted(b'{"id":1}', 1))
    await written.write('{"id":1,"result":{}}')
    async for line in read:
        await written.write(line + "\\n")
    assert threading.active_count() == 1
    print("what is printed by mistake")

anyio.run(main)
"""
LINES = b"second\n" + b"x" * (1 << 20) + b"\n\xff\n\ncut"
SAID = b"first\n" + LINES.replace(b"\xff", "\N{REPLACEMENT CHARACTER}".encode()) + b"\n"


@pytest.mark.parametrize("is_file", [False, True])
def test_lines_come_and_go_without_a_thread(tmp_path: Path, is_file: bool) -> None:
    # docs/mcp-serve.md; issue: "serve adds <= 1 ms to a tool's call over stdio"
    (tmp_path / "lines").write_bytes(LINES)
    words = [sys.executable, "-c", ECHO]
    if is_file:
        with (tmp_path / "lines").open("rb") as file:
            done = subprocess.run(words, check=True, capture_output=True, stdin=file)
    else:
        done = subprocess.run(words, check=True, capture_output=True, input=LINES)
    assert done.stdout == SAID
    assert done.stderr == b"what is printed by mistake\n"
