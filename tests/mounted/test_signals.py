"""The report that the daemon writes about itself on a signal (docs/contributing.md)."""

from __future__ import annotations

import os
import signal

from tests.mounted.ctx_mount import Ctx
from tests.waiting import until


def test_its_tasks_and_stacks_are_written_to_its_log(fresh: Ctx) -> None:
    # issue: "SIGUSR1 writes the daemon's task tree and stacks to its log"
    log = fresh.state / "daemon.log"
    os.kill(fresh.pid, signal.SIGUSR1)
    said = until(log.read_text, lambda text: "cortexfs.daemon.daemon.Daemon._main" in text)
    assert "\n    cortexfs." in said  # tasks below others
    assert "/cortexfs/daemon/daemon.py:" in said  # lines where tasks wait
    assert "(most recent call first)" in said  # stacks of threads, also of a loop that is stuck
    assert fresh.call("fs.read", "/etc/hostname").status == 0
