"""`ctx plugin install` and `test` that a signal interrupts or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.forks import public_directory
from tests.shell.plugin_commands import Said
from tests.waiting import PATIENCE

places, said = plugin_commands.places, plugin_commands.said


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sets a TMPDIR that a plugin can also reach while it is described as the user nobody."""
    with public_directory() as found:
        monkeypatch.setenv("TMPDIR", str(found))
        yield found


@pytest.mark.parametrize(
    ("command", "number", "status"),
    [
        ("install", signal.SIGINT, 130),
        ("install", signal.SIGTERM, 143),
        ("test", signal.SIGINT, 130),
        ("test", signal.SIGHUP, 129),
    ],
)
def test_whoever_ends_a_trial_hears_nothing_and_leaves_nothing(
    places: directories.Places, said: Said, public: Path, command: str, number: signal.Signals, status: int
) -> None:
    # commands.md: "130 | interrupted or cancelled"; abi.md 11.45
    said.ok("new", "hangs", "hangs", "--template", "python")
    gate = public / "gate"
    os.mkfifo(gate)
    gate.chmod(0o644)
    (module,) = Path("hangs/lib").glob("*.py")
    module.write_text(f"open({str(gate)!r}).read()\n")
    words = [sys.executable, "-m", "cortexfs.cli.main", "plugin", command, "hangs"]
    trial = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with open(gate, "w"):  # waits until the plugin opens it, too
        trial.send_signal(number)
        assert (trial.communicate(timeout=PATIENCE)[0], trial.returncode) == ("", status)
    assert [path.name for path in public.iterdir()] == ["gate"]
    assert not (places.state / "plugins").exists()
