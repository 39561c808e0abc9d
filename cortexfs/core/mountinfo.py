"""The CortexFS mounts in the kernel's table of mounts (proc(5), mountinfo), and their owners.

Rules: the owner of a mount decides what is in it, and what runs when one of its objects is executed. So a
command uses the mount of a user other than its own and root only if its user names that mount.
This file must never know how the table is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

TABLE = "/proc/self/mountinfo"
FSTYPE = "fuse.cortexfs"
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    point: str
    connection: int  # the name of its directory below /sys/fs/fuse/connections
    owner: int
    everyone: bool  # mounted with allow_other

    def is_strangers(self, uid: int) -> bool:
        """Returns True if `uid` has to name this mount in order to use it (abi.md 1.22)."""
        return self.owner not in (0, uid)

    def reason(self) -> str:
        """Returns why this mount was passed over, and how to use it."""
        mend = f"to use it nevertheless, name it: --root {self.point}, or CTX_ROOT={self.point}"
        return f"{self.point} is the mount of uid {self.owner}, which decides what runs there; {mend}"


def mounts(table: str) -> list[Mount]:
    """Returns the mounts of whole trees, in mounting order."""
    return [mount for line in table.splitlines() if (mount := _parsed(line))]


def _parsed(line: str) -> Mount | None:
    left, _, right = line.partition(" - ")
    _, _, device, inside, point, *_ = left.split(" ")
    fstype, _, options = right.split(" ", 2)
    # A bind mount of a part, such as tool/, is no mount of the whole tree.
    if fstype != FSTYPE or inside != "/":
        return None
    words = options.split(",")
    owner = next((int(word[8:]) for word in words if word.startswith("user_id=")), 0)
    point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), point)
    return Mount(point, int(device.partition(":")[2]), owner, "allow_other" in words)


def device(table: bytes, root: str) -> tuple[int, int]:
    """Returns the major and minor numbers of the topmost mount at `root`, or zeroes if there is none."""
    return _device(reversed(table.splitlines()), 4, escaped(root))


def device_of(table: bytes, mount: bytes) -> tuple[int, int]:
    """Returns the major and minor numbers of the mount with this id, or zeroes if there is none."""
    return _device(table.splitlines(), 0, mount)


def _device(lines: Iterable[bytes], field: int, value: bytes) -> tuple[int, int]:
    found = next((fields[2] for line in lines if (fields := line.split())[field] == value), b"0:0")
    major, _, minor = found.partition(b":")
    return int(major), int(minor)


def escaped(path: str) -> bytes:
    """Returns a path as the table writes it, with space, tab, newline and backslash in octal."""
    data = path.encode(errors="surrogateescape")
    return re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), data)
