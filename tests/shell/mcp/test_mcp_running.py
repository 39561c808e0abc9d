"""Runs of our MCP server, as programs of this user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cortexfs.client.results import Failed
from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame
from cortexfs.mcp import running
from tests.waiting import until

DONE = '{"type":"done","run":"r","status":"ok"}'


def program(place: Path, text: str) -> str:
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return str(place)


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reaped() -> None:
    while running._ending:
        os.waitpid(running._ending.pop(), 0)


async def test_a_run_is_answered_by_its_last_word_and_reaped_after_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    heard: list[AnyFrame] = []

    async def hear(frame: AnyFrame) -> None:
        heard.append(frame)

    slow = program(tmp_path / "slow", f"echo '{DONE}'; cat {tmp_path}/held >/dev/null")
    await running.run(slow, b"", hear)
    assert [type(frame) for frame in heard] == [frames.Done]
    (pid,) = running._ending
    assert not has_ended(pid)
    (tmp_path / "held").write_text("")
    until(lambda: has_ended(pid))
    await running.run(program(tmp_path / "quick", f"echo '{DONE}'"), b"", hear)
    assert pid not in running._ending
    reaped()


async def test_a_run_without_a_last_word_is_judged_by_its_status(tmp_path: Path) -> None:
    async def hear(_: AnyFrame) -> None: ...

    with pytest.raises(Failed, match="exit status 3 and without a done frame"):
        await running.run(program(tmp_path / "fails", "exit 3"), b"", hear)
    assert running._ending == []
