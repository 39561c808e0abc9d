"""CTX_TRACE: a file with the traffic of sockets, for developers of CortexFS (docs/contributing.md)."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from cortexfs.core.errors import exit_status
from tests.mounted import talking
from tests.mounted.ctx_mount import Ctx


def traced(mount: Ctx, words: str) -> list[dict[str, Any]]:
    """Send a call and a message to a daemon that records these subjects; returns the recorded lines."""
    mount.umount()
    mount.environ["CTX_TRACE"] = words
    mount.mount()
    (mount.work / "text").write_text("a text to be read\n")
    assert mount.run([mount.tool("fs.read"), str(mount.work / "text")]).returncode == 0
    talking.said(mount, "a word to be echoed")
    path = mount.state / "trace.jsonl"
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.getuid())
    return [json.loads(line) for line in path.read_text().splitlines()]


def said(lines: list[dict[str, Any]], over: str, way: str) -> str:
    return "".join(line["text"] for line in lines if (line["over"], line["way"]) == (over, way))


def test_frames_and_messages_of_hosts_are_recorded(fresh: Ctx) -> None:
    lines = traced(fresh, "wire, calls")
    assert str(fresh.work / "text") in said(lines, "wire", "heard")
    assert '"type":"delta"' in said(lines, "wire", "said")
    assert "a word to be echoed" in said(lines, "wire", "heard")
    assert "fs.read" in said(lines, "calls", "said")
    assert "a text to be read" in said(lines, "calls", "heard")
    assert all(line["bytes"] == len(line["text"]) for line in lines)  # no text is cut here


def test_only_what_is_named_is_recorded(fresh: Ctx) -> None:
    assert {line["over"] for line in traced(fresh, "calls")} == {"calls"}


def test_nothing_is_recorded_for_nobody(fresh: Ctx) -> None:
    assert fresh.run([fresh.tool("fs.read"), "/etc/hostname"]).returncode == 0
    assert not (fresh.state / "trace.jsonl").exists()


def test_what_cannot_be_traced(fresh: Ctx) -> None:
    fresh.umount()
    fresh.environ["CTX_TRACE"] = "wire,thoughts"
    refused = fresh.ctx("mount", str(fresh.root), check=False)
    assert refused.returncode == exit_status("EINVAL")
    assert "CTX_TRACE: 'thoughts' cannot be traced; write wire, calls or wire,calls" in refused.stderr
