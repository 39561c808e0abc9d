"""A hostile local user who calls from places that a daemon of root's must not look at.

docs/attacks.md names these tests as the evidence for its claims.
"""

from __future__ import annotations

import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.test_attacks import MALLORY, Attacker, words_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an attacker of another uid needs a root daemon")

INIT, ACCESS = 26, 34  # the requests by which a directory is entered


@contextmanager
def hung_for_all(place: Path) -> Iterator[None]:
    """A FUSE file system that all users may enter (`allow_other`), and that answers nothing else."""
    place.mkdir()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={MALLORY},group_id={MALLORY},allow_other"
    subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "hung", place], check=True, pass_fds=[fuse])

    def answer() -> None:
        while True:
            try:
                _, opcode, unique = struct.unpack_from("<IIQ", os.read(fuse, 1 << 17))
                if opcode in (INIT, ACCESS):
                    told = struct.pack("<IIIIHHIIHH", 7, 31, 0, 0, 12, 12, 4096, 1, 0, 0) + bytes(32)
                    told = told if opcode == INIT else b""
                    os.write(fuse, struct.pack("<IiQ", 16 + len(told), 0, unique) + told)
            except OSError:  # it is unmounted
                return

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        yield
    finally:
        subprocess.run(["umount", "-f", "-l", place], check=True)
        answering.join()
        os.close(fuse)


def test_a_root_directory_that_never_answers_holds_nobody_up(ctx: Ctx) -> None:
    # design: "The daemon ... touches no path for a caller."
    place = ctx.work / "hung-for-all"
    script = f"""
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0
os.chdir(ROOT)
os.chroot({str(place)!r})  # the working directory stays
s = socket.socket(socket.AF_UNIX)
s.connect(".run.sock")
s.sendall(hello(1, 0, 2) + b"x\\0")
say(True)
"""
    with hung_for_all(place), Attacker(ctx, script) as heard:
        assert heard
        assert words_of(ctx) == "2 words"
        assert words_of(ctx, MALLORY) == "2 words"
