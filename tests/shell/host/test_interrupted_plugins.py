"""A call may be cancelled at any instruction and leaves nothing behind: every such place in turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import PROJECT
from tests.shell import declaring
from tests.shell.host.test_native_plugins import FIXTURE

ROOT = PROJECT
LEAVING = "setsid sleep 1000 &\nsleep 1000 &\necho '\"done\"'"
ANSWERING = """
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    if "cancel" not in call:
        print(json.dumps({"id": call["id"], "output": "done"}), flush=True)
"""


@pytest.mark.parametrize(("kind", "least"), [("process", 100), ("cold", 30), ("warm", 15), ("native", 20)])
def test_a_call_that_is_cancelled_at_each_place_in_turn(tmp_path: Path, kind: str, least: int) -> None:
    # serve.py: "a cancellation hits its own call or none"; children.py: "ends them and all their descendants"
    if kind == "native":
        what = declaring.build(tmp_path, FIXTURE)
    elif kind == "process":
        what = declaring.script(tmp_path, LEAVING)
    else:
        what = declaring.python(tmp_path, ANSWERING)
    command = [sys.executable, "-m", "tests.shell.interrupting", kind, what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least
