"""The other side of tree_mount.py: start such a mount, use it as a user would, and leave nothing.

Rules: the mount is served by another process, so paths in it may be used here. Leaving the
context ends that process and the mount, whatever state a test left them in.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

PROJECT = Path(__file__).parent.parent.parent
USER = 12345


class Served:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.state = base / "state"
        self.root.mkdir()
        self.state.mkdir(mode=0o700)
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.mounted.tree_mount", str(self.root), str(self.state)]
        with open(self.base / "log", "ab") as log:
            self._process = subprocess.Popen(
                words, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._answer() == "ready\n", self.log()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def tell(self, line: str) -> None:
        """Have the tree changed; it is when this returns."""
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._answer() == "done\n", self.log()

    def kill(self) -> None:
        """As kill -9 does; the mount stays behind until `stop`."""
        self._process.kill()

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=PATIENCE)
        self._process.kill()
        self._process.wait()
        if os.path.ismount(self.root) or self._is_stale():
            subprocess.run(["fusermount3", "-u", "-z", str(self.root)], check=True)

    def _is_stale(self) -> bool:
        try:
            os.listdir(self.root)
        except OSError:  # ENOTCONN: the mount of a process that is gone
            return True
        return False

    def log(self) -> str:
        return (self.base / "log").read_text()

    def run(self, *words: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
        """A command in the root of the mount."""
        return subprocess.run(
            words,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            user=user,
            group=user,
            extra_groups=None if user is None else (),
            env={"PATH": "/usr/bin:/bin", "LANG": "C", "HOME": "/nonexistent"},
        )

    def shell(self, script: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
        return self.run("sh", "-c", script, user=user)

    def does(self, script: str, user: int | None = None) -> str:
        """A script that must end well and have nothing to complain about; its output."""
        done = self.shell(script, user)
        assert (done.returncode, done.stderr) == (0, ""), f"{script}: {done.stderr}\n{self.log()}"
        return done.stdout


@contextlib.contextmanager
def served() -> Iterator[Served]:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("fusermount3"):
        pytest.skip("no FUSE here: /dev/fuse cannot be opened, or fusermount3 is missing")
    base = Path(tempfile.mkdtemp(prefix="cortexfs-tree-"))
    base.chmod(0o755)  # other users look in, too
    mount = None
    try:
        mount = Served(base)
        yield mount
    finally:
        if mount:
            mount.stop()
        shutil.rmtree(base)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as several users, which only root can")
