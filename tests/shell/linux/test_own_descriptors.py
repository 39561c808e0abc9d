"""linux/own_descriptors.py: descriptors of a process of its own, and of its thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

KEEPS = """
import os, sys
from cortexfs.linux.own_descriptors import close_all_but
for _ in range(9):
    os.dup(2)
os.dup2(2, 300)
close_all_but(*map(int, sys.argv[1:]))
os.write(2, " ".join(name for name in sorted(os.listdir("/proc/self/fd"), key=int)).encode())
"""


@pytest.mark.parametrize(
    ("kept", "left"),
    [("0 1 2", "0 1 2 3"), ("2 0 5", "0 1 2 5"), ("2 300 4 5", "0 2 4 5 300"), ("2 400", "0 2")],
)
def test_all_others_are_closed(kept: str, left: str) -> None:
    words = [sys.executable, "-c", KEEPS, *kept.split()]
    found = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=True).stderr
    assert found == left  # the listing itself takes the lowest number that is free
