"""The daemon as a service: it reports READY when it answers calls, sends heartbeats, and reports its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.waiting import PATIENCE


# abi.md 8.39
def test_the_manager_is_told_ready_when_the_first_call_is_answered(python: Path, tmp_path: Path) -> None:
    ctx = Ctx(tmp_path, python)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(PATIENCE)
        environ = {**ctx.environ, "NOTIFY_SOCKET": heard.getsockname(), "WATCHDOG_USEC": "60000"}
        words = [str(python), "-I", "-m", "cortexfs.cli.main", "mount", str(ctx.root), "--foreground"]
        with subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL) as daemon:
            try:
                while not (said := heard.recv(1000)).startswith(b"READY=1\n"):
                    assert said == b"WATCHDOG=1"
                done = subprocess.run([ctx.tool("text.word_count"), "a b"], capture_output=True, text=True)
                assert "2 words" in done.stdout
                environment = Path(f"/proc/{daemon.pid}/environ").read_bytes()
                assert b"NOTIFY_SOCKET" in environment  # the kernel shows the variables of the start
                shown = subprocess.run([ctx.tool("shell.exec"), "env"], capture_output=True, text=True)
                assert "NOTIFY_SOCKET" not in shown.stdout
                for _ in range(5):
                    assert heard.recv(1000) == b"WATCHDOG=1"
                daemon.send_signal(signal.SIGTERM)
                while heard.recv(1000) != b"STOPPING=1":
                    pass
                assert daemon.wait(PATIENCE) == 0
            finally:
                daemon.kill()
                subprocess.run(["umount", "-l", str(ctx.root)], stderr=subprocess.DEVNULL, check=False)


# abi.md 4.42
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_unit_with_no_new_privs_and_no_filter_calls_the_mount(ctx: Ctx) -> None:
    words = ["setpriv", "--no-new-privs", ctx.tool("text.word_count"), "a b"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "2 words" in done.stdout
