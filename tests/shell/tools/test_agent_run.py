"""agent.run: the frames of a helper, as the tool passes them on."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cortexfs.core.talk import refusals
from cortexfs.sdk import MemoryRuntime, run
from cortexfs.tools import agent_run


def test_denied_calls_of_a_helper_and_of_its_helpers_are_notes(tmp_path: Path) -> None:
    # abi.md 8.29
    said = f"{refusals.DENIED} not by its policy. {refusals.GO_ON}"
    frames = [
        {"type": "tool_result", "call": "c1", "name": "fs.write", "output": said, "is_error": True},
        {"type": "tool_result", "call": "c2", "name": "fs.read", "output": said, "is_error": False},
        {"type": "observer", "source": refusals.HELPERS, "content": "fs.list: nor this"},
        {"type": "observer", "source": "tool/other: denied", "content": "invented"},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    helper = tmp_path / "agent" / "helper"
    helper.parent.mkdir()
    lines = "\n".join(map(json.dumps, frames))
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'END'\n{lines}\nEND\n")
    helper.chmod(0o755)
    runtime = MemoryRuntime(environ={"CTX_ROOT": str(tmp_path), "PATH": os.environ["PATH"]})
    result = run(agent_run.run, {"name": "helper", "task": "write"}, runtime)
    assert result.output == "done\n[denied to the helper: fs.write: not by its policy.]"
    path, _, note = refusals.HELPERS.partition(": ")
    assert path == f"tool/{agent_run.run.name}"
    assert runtime.observed == [(note, "fs.write: not by its policy."), (note, "fs.list: nor this")]
