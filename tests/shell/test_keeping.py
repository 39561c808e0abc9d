"""The directory of what a plugin keeps for its user."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.host.call import plugin_state


def plugin(keeps: Path) -> hostcalls.Plugin:
    return hostcalls.Plugin("kept", "1", "esm", "mod.ts", keeps=str(keeps))


IDENTITY = hostcalls.Identity(os.getuid(), os.getgid(), ())


def test_hosts_that_begin_at_once_share_it(tmp_path: Path) -> None:
    # a user's host and that of his confined agent are two, and may both be the first
    faults: list[Fault] = []
    for turn in range(50):
        (place := tmp_path / str(turn)).mkdir()
        gate = threading.Barrier(4)

        def begin(gate: threading.Barrier = gate, place: Path = place) -> None:
            gate.wait()
            try:
                plugin_state.prepare(plugin(place), IDENTITY)
            except Fault as fault:
                faults.append(fault)

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stat.S_IMODE((place / str(os.getuid())).stat().st_mode) == 0o700
    assert faults == []


def test_what_is_no_directory_is_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / str(os.getuid())).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fault, match="it is no directory"):
        plugin_state.prepare(plugin(tmp_path), IDENTITY)
