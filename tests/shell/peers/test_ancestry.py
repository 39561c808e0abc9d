"""The parents of a caller (peers/ancestry.py) are known without reading what its user could hold back."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from cortexfs.peers import ancestry
from cortexfs.peers.caller import caller_of
from tests.shell.forks import connected

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="callers of other users need root")


def test_the_memory_of_a_caller_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # A page fault that a FUSE mount never answers would hold up all who read /proc/PID/cmdline.
    read = []

    def noted(work: Callable[[bytes], bytes], path: bytes) -> bytes:
        read.append(os.path.basename(path))
        return work(path)

    for name in ("contents", "record"):
        monkeypatch.setattr(ancestry, name, partial(noted, getattr(ancestry, name)))
    with connected("setpriv", "--no-new-privs") as sock, caller_of(sock, {}):
        pass
    assert {*read} == {b"stat", b"cgroup"}
