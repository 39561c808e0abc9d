"""Mount namespaces in which every user may mount, as on a machine that has a desktop.

/dev/fuse is open to all users on most machines but not on all, so a space has its own. Earlier mounts can be
used in a space, and mounts made in a space are not seen outside. A space ends with its last process.
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
    """Creates a /dev/fuse in `place` that every user may open."""
    device = place / "fuse"
    os.mknod(device, 0o020666, os.makedev(10, 229))
    device.chmod(0o666)
    return device


class Inside(Protocol):
    """A mount namespace in which commands can be run."""

    def words(self, uid: int, cwd: Path) -> list[str]: ...


class Space:
    """A mount namespace, kept by a process that runs in it."""

    def __init__(self, covers: str) -> None:
        self._inside = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{covers} && echo && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._inside.stdout
        assert self._inside.stdout.readline()

    def words(self, uid: int, cwd: Path) -> list[str]:
        """Returns the first words of a command that runs inside as `uid`, with the groups of the caller."""
        return ["nsenter", f"--mount=/proc/{self._inside.pid}/ns/mnt", f"--wdns={cwd}", "-S", str(uid)]

    def end(self) -> None:
        self._inside.communicate()


@contextlib.contextmanager
def space(configuration: str = "") -> Iterator[Space]:
    """Yield a space, with `configuration` as its fuse.conf if it is not empty."""
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
