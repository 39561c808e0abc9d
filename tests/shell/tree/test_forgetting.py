"""Names that the kernel has to forget, while a folder is held."""

from __future__ import annotations

import threading

import pytest

from cortexfs.tree.forgetting import Forgetting
from tests.waiting import until

HELD, FREE = 5, 6


class Kernel:
    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.forgotten: list[tuple[int, bytes]] = []
        self.waiting = 0

    def forget(self, folder: int, name: bytes) -> None:
        if folder == HELD:
            self.waiting += 1
            self.goes_on.wait()
        self.forgotten.append((folder, name))


def test_a_held_folder_is_waited_for_once_and_by_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    names = Forgetting(forget_name=kernel.forget)
    names.forget([(HELD, "a"), (FREE, "a")], patience=0.05)
    assert kernel.forgotten == [(FREE, b"a")]
    assert [record.getMessage()[:37] for record in caplog.records] == [
        "new names in the folder with inode 5 "
    ]
    names.forget([(HELD, "b"), (FREE, "b")], patience=3600)
    assert (kernel.forgotten, kernel.waiting) == ([(FREE, b"a"), (FREE, b"b")], 1)
    kernel.goes_on.set()
    until(lambda: len(kernel.forgotten) == 4)
    names.forget([(HELD, "c")], patience=3600)
    assert kernel.forgotten[-1] == (HELD, b"c")


def test_a_name_that_changes_all_the_time_takes_no_memory_in_a_held_folder() -> None:
    kernel = Kernel()
    names = Forgetting(forget_name=kernel.forget)
    for number in range(3000):
        names.forget([(HELD, f"n{number % 3}")], patience=0.01)
    kernel.goes_on.set()
    names.forget([(HELD, "last")], patience=3600)
    until(lambda: (HELD, b"last") in kernel.forgotten and not names._folders)
    assert len(kernel.forgotten) <= 5


def test_a_name_that_is_not_known_is_no_error() -> None:
    def gone(folder: int, name: bytes) -> None:
        forgotten.append(name)
        raise FileNotFoundError

    forgotten: list[bytes] = []
    Forgetting(forget_name=gone).forget([(FREE, "a"), (FREE, "b")])
    assert sorted(forgotten) == [b"a", b"b"]
