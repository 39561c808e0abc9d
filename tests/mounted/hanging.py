"""File systems that answer only as far as they are told, and processes that hold a folder by one."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE

# Requests of the kernel (linux/fuse.h).
GETATTR, OPEN, READ, INIT, ACCESS = 3, 14, 15, 26, 34
_ATTRIBUTES = struct.pack("<6Q10I", 1, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
ANSWERS = {
    INIT: struct.pack("<IIIIHHIIHH", 7, 31, 0, 0, 12, 12, 4096, 1, 0, 0) + bytes(32),
    ACCESS: b"",
    GETATTR: struct.pack("<QII", 3600, 0, 0) + _ATTRIBUTES,
    OPEN: struct.pack("<QII", 1, 0, 0),
}

_LISTS = """
import ctypes, mmap, os, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
file = os.open(sys.argv[2], os.O_RDWR)
assert os.fstat(file).st_size == 4096
page = mmap.mmap(file, 4096)
ctypes.CDLL(None).getdents64(folder, (ctypes.c_char * 4096).from_buffer(page), 4096)
"""


@contextmanager
def hanging(place: Path, answers: Mapping[int, bytes] = ANSWERS) -> Iterator[threading.Event]:
    """A FUSE file system for all users, which answers no other requests. Yields an event: a file is read."""
    fuse, reads = os.open("/dev/fuse", os.O_RDWR), threading.Event()
    kind = "40000" if place.is_dir() else "100644"
    options = f"fd={fuse},rootmode={kind},user_id=0,group_id=0,allow_other,nosuid"
    subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "hung", place], check=True, pass_fds=[fuse])
    stop, end = os.pipe()

    def serve() -> None:
        while stop not in select.select([fuse, stop], [], [])[0]:
            _, opcode, unique = struct.unpack_from("<IIQ", os.read(fuse, 1 << 17))
            if opcode == READ:
                reads.set()
            if opcode in answers:
                said = answers[opcode]
                os.write(fuse, struct.pack("<IiQ", 16 + len(said), 0, unique) + said)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield reads
    finally:
        os.close(end)
        serving.join()
        os.close(fuse)  # whoever waits gets an error
        os.close(stop)
        subprocess.run(["umount", "-l", place], check=True)


@contextmanager
def endless_listing(folder: Path, place: Path, uid: int) -> Iterator[None]:
    """A process of this user lists the folder, and never ends: the memory for the names is a page of a file
    that is never read."""
    place.write_bytes(b"")
    with hanging(place) as reads:
        words = [sys.executable, "-I", "-c", _LISTS, str(folder), str(place)]
        lists = subprocess.Popen(words, user=uid, group=uid, extra_groups=[], cwd="/", stderr=subprocess.PIPE)
        is_held = reads.wait(PATIENCE)
        if is_held:
            yield
    _, said = lists.communicate(timeout=PATIENCE)
    assert is_held, said
