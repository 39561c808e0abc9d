"""The text of status."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from cortexfs.daemon import status


@pytest.mark.parametrize("step", [-7200, 7200])
def test_uptime_does_not_follow_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    # issue 13.10
    daemon = MagicMock()
    daemon.config.directory = daemon.config.state = tmp_path
    daemon.reload.begun = daemon.reload.count = 0
    daemon.began = time.time()
    daemon.began_boottime = time.clock_gettime(time.CLOCK_BOOTTIME) - 60
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step)
    uptime = next(line for line in status.text(daemon).splitlines() if line.startswith("uptime: "))
    assert 60 <= int(uptime.split()[1]) < 600
