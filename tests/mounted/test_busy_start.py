"""A daemon that starts while other processes already look into its tree."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import ExitStack, suppress

from tests.mounted.ctx_mount import Ctx
from tests.waiting import PATIENCE

LOOKERS, ROUNDS = 4, 4


def test_nobody_who_looks_into_a_folder_keeps_its_sockets_from_being_bound(fresh: Ctx) -> None:
    # To bind a socket, the kernel must forget its name, and waits for processes that look into its folder.
    over = threading.Event()

    def look(number: int) -> None:
        for turn in itertools.count():  # a new name each time, as the kernel remembers missing names
            if over.is_set():
                return
            for folder in ("model/debug", "model", "agent"):
                with suppress(OSError):
                    os.lstat(fresh.root / folder / f"nothing-{number}-{turn}")

    with ExitStack() as stack:
        stack.callback(over.set)
        threads = [threading.Thread(target=look, args=(number,)) for number in range(LOOKERS)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join, PATIENCE)
        stack.callback(over.set)
        for _ in range(ROUNDS):
            fresh.ctx("umount", str(fresh.root))
            fresh.mount()
    assert fresh.call("fs.read", "/etc/hostname").status == 0
