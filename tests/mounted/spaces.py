"""Mount namespaces in which every user may mount, as on a machine that has a desktop.

/dev/fuse is open to everybody on most machines and not on all, so a space brings one of its own. What was
mounted before can be used in it, and what it mounts is nobody's outside. It is gone with its last process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


def open_device(place: Path) -> Path:
    """Makes a /dev/fuse there that every user may open."""
    device = place / "fuse"
    os.mknod(device, 0o020666, os.makedev(10, 229))
    device.chmod(0o666)
    return device


class Inside(Protocol):
    """A place where commands can be run."""

    def words(self, uid: int, cwd: Path) -> list[str]: ...


class Space:
    """One of them, by a process that is in it."""

    def __init__(self, covers: str) -> None:
        self._inside = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{covers} && echo && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._inside.stdout
        assert self._inside.stdout.readline()

    def words(self, uid: int, cwd: Path) -> list[str]:
        """What a command begins with that a user runs inside; its groups are those of who begins it."""
        return ["nsenter", f"--mount=/proc/{self._inside.pid}/ns/mnt", f"--wdns={cwd}", "-S", str(uid)]

    def end(self) -> None:
        self._inside.communicate()


@contextlib.contextmanager
def space(configuration: str = "") -> Iterator[Space]:
    """A space for a while, with that fuse.conf where one is given."""
    with tempfile.TemporaryDirectory(prefix="ctx-space-") as name:
        base = Path(name)
        base.chmod(0o755)
        covers = f"mount --bind {open_device(base)} /dev/fuse"
        if configuration:
            (base / "fuse.conf").write_text(configuration)
            covers += f" && mount --bind {base}/fuse.conf /etc/fuse.conf"
        made = Space(covers)
        try:
            yield made
        finally:
            made.end()
